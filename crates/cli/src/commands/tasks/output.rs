//! Writes imported tasks.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::fs;
use std::io::Write as _;
use std::path::Path;

/// Writes tasks to a file of JSON lines, a folder of YAML files, or stdout.
pub(super) fn write(tasks: &[Value], out: Option<&Path>) -> Result<()> {
    let Some(out) = out else {
        std::io::stdout().lock().write_all(lines(tasks).as_bytes())?;
        return Ok(());
    };
    let said = if out.extension().is_some_and(|ending| ending == "jsonl") {
        fs::write(out, lines(tasks)).with_context(|| format!("write {}", out.display()))?;
        format!("{1} tasks in {0}; `polar run {0}` runs them", out.display(), tasks.len())
    } else {
        fs::create_dir_all(out).with_context(|| format!("make {}", out.display()))?;
        for task in tasks {
            let name = task["task_id"].as_str().unwrap_or("task");
            let path = out.join(format!("{name}.yaml"));
            fs::write(&path, yaml(task)?).with_context(|| format!("write {}", path.display()))?;
        }
        format!("{} tasks in {}", tasks.len(), out.display())
    };
    writeln!(std::io::stderr(), "{said}")?;
    Ok(())
}

fn lines(tasks: &[Value]) -> String {
    tasks.iter().map(|task| format!("{task}\n")).collect()
}

/// A task as YAML that reads back as the very same.
fn yaml(task: &Value) -> Result<String> {
    let text = serde_saphyr::to_string(task).context("write YAML")?;
    let again: Option<Value> = serde_saphyr::from_str(&text).ok();
    if again.as_ref() == Some(task) {
        return Ok(text);
    }
    // JSON is YAML too, but for a few letters, which only texts can have.
    let unfit = |letter: &char| {
        matches!(letter, '\u{7f}'..='\u{9f}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}')
    };
    let text: String = serde_json::to_string_pretty(task)?
        .chars()
        .map(|letter| match unfit(&letter) {
            true => format!("\\u{:04x}", u32::from(letter)),
            false => letter.to_string(),
        })
        .collect();
    let again: Value = serde_saphyr::from_str(&text).context("read the task back")?;
    ensure!(again == *task, "a task does not read back as it was written");
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn tasks_read_back_as_they_were() {
        let odd = [
            "no",
            "1e3",
            "a: b",
            "# c",
            "é\u{85}x",
            "\u{82}|\u{9f}\u{feff}",
            "\ttab",
            "two\nlines\n",
            " ",
            "",
            "'\"",
            "~",
        ];
        let task =
            json!({"task_id": "a", "metadata": {"odd": odd, "n": 1.5, "big": 12345678901_u64}});
        let again: Value = serde_saphyr::from_str(&yaml(&task).unwrap()).unwrap();
        assert_eq!(again, task);
    }

    #[test]
    fn an_ending_says_which_form_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let tasks = [json!({"task_id": "a"}), json!({"task_id": "b"})];
        write(&tasks, Some(&folder.path().join("all.jsonl"))).unwrap();
        let text = fs::read_to_string(folder.path().join("all.jsonl")).unwrap();
        assert_eq!(text, "{\"task_id\":\"a\"}\n{\"task_id\":\"b\"}\n");
        write(&tasks, Some(&folder.path().join("each"))).unwrap();
        assert!(folder.path().join("each/b.yaml").exists());
    }
}

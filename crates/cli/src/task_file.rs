//! Task files: a [`polar_types::TaskRequest`] in YAML or JSON, with two conveniences
//! that only make sense next to the user's own files.
//!
//! - `runtime.prepare` and `grading.setup` may hold `{type: upload, source: DIR|FILE, target: PATH}`. It is
//!   replaced by one `write_file` step per file, so that nodes never read the client's
//!   disk.
//! - `harness.path: adapter.yaml` is replaced by `harness.adapter` with its content.

use anyhow::{Context, Result, bail, ensure};
use base64::Engine as _;
use serde_json::{Map, Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Most bytes that upload steps may put into one task.
const MOST_UPLOAD_BYTES: u64 = 32 << 20;

/// Reads a task file. Relative paths in it start at its folder.
pub(crate) fn read(path: &Path) -> Result<Value> {
    let text = text(path).with_context(|| format!("read task file {}", path.display()))?;
    let folder = path.parent().unwrap_or(Path::new("."));
    parse(&text, folder).with_context(|| format!("task file {}", path.display()))
}

/// Reads an evaluator, by itself or out of a task file.
pub(crate) fn read_evaluator(path: &Path) -> Result<Value> {
    let read = text(path).and_then(|text| yaml(&text));
    let mut read = read.with_context(|| format!("read evaluator {}", path.display()))?;
    Ok(match read.get_mut("evaluator") {
        Some(evaluator) => evaluator.take(),
        None => read,
    })
}

/// A task and where it was read, in words.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Placed {
    pub(crate) task: Value,
    pub(crate) place: String,
}

/// All tasks of files: one, or one in each line of a `.jsonl` file. An error tells of every file
/// that cannot be read.
pub(crate) fn read_files(paths: &[PathBuf]) -> Result<Vec<Placed>> {
    let (mut tasks, mut problems) = (Vec::new(), Vec::new());
    for path in paths {
        match read_all(path) {
            Ok(read) => tasks.extend(read),
            Err(problem) => problems.push(problem),
        }
    }
    one_of(problems)?;
    Ok(tasks)
}

/// Fails where there are problems, with all of them.
fn one_of(mut problems: Vec<anyhow::Error>) -> Result<()> {
    match problems.len() {
        0 => Ok(()),
        1 => Err(problems.remove(0)),
        _ => {
            let told: Vec<_> = problems.iter().map(|problem| format!("{problem:#}")).collect();
            bail!("{}", told.join("\n"))
        }
    }
}

fn read_all(path: &Path) -> Result<Vec<Placed>> {
    let file = format!("task file {}", path.display());
    if path.extension().is_none_or(|ending| ending != "jsonl") {
        return Ok(vec![Placed { task: read(path)?, place: file }]);
    }
    let text = text(path).with_context(|| format!("read task file {}", path.display()))?;
    let folder = path.parent().unwrap_or(Path::new("."));
    let (mut tasks, mut problems) = (Vec::new(), Vec::new());
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        // JSON may have letters that YAML refuses.
        let place = format!("{file}, line {}", index + 1);
        let task = serde_json::from_str(line).context("not JSON");
        let task = task.and_then(|task| complete(task, folder));
        match task.with_context(|| place.clone()) {
            Ok(task) => tasks.push(Placed { task, place }),
            Err(problem) => problems.push(problem),
        }
    }
    one_of(problems)?;
    ensure!(!tasks.is_empty(), "task file {} has no task in it", path.display());
    Ok(tasks)
}

/// The steps that an upload of `source` to `target` stands for.
pub(crate) fn uploaded(source: &Path, target: &str) -> Result<Vec<Value>> {
    let source = source.canonicalize().with_context(|| format!("find {}", source.display()))?;
    let step = json!({"source": source, "target": target});
    let mut steps = Vec::new();
    upload(&step, Path::new("/"), &mut { MOST_UPLOAD_BYTES }, &mut steps)?;
    Ok(steps)
}

fn text(path: &Path) -> Result<String> {
    String::from_utf8(fs::read(path)?).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        anyhow::anyhow!(
            "it is not UTF-8: the byte at offset {at} belongs to no character; save it as UTF-8"
        )
    })
}

/// YAML or JSON, with refusals that speak of the file alone.
fn yaml(text: &str) -> Result<Value> {
    serde_saphyr::from_str(text).map_err(|error| {
        // The default words name options of the parser, which nobody here can set.
        let said = error.render_with_formatter(&serde_saphyr::UserMessageFormatter);
        anyhow::anyhow!("not valid YAML: {said}")
    })
}

/// As [`read`], for text that is already at hand.
pub(crate) fn parse(text: &str, folder: &Path) -> Result<Value> {
    complete(yaml(text)?, folder)
}

/// With what the task names of the user's files in it.
fn complete(mut task: Value, folder: &Path) -> Result<Value> {
    ensure!(task.is_object(), "a task is a mapping with at least `instruction` and `harness`");
    inline_adapter(&mut task, folder)?;
    let mut budget = MOST_UPLOAD_BYTES;
    let mut problems = Vec::new();
    for (part, list) in [("runtime", "prepare"), ("grading", "setup")] {
        problems.extend(expand_uploads(&mut task, part, list, folder, &mut budget));
    }
    one_of(problems)?;
    Ok(task)
}

/// Uses another harness than the file says: a shipped name, or the path of an adapter.
pub(crate) fn set_harness(task: &mut Value, choice: &str) -> Result<()> {
    let is_path = choice.ends_with(".yaml") || choice.ends_with(".yml") || choice.contains('/');
    let mut harness = match task.get("harness") {
        Some(Value::Object(map)) => map.clone(),
        _ => Map::new(),
    };
    harness.remove("adapter");
    if is_path {
        harness.insert("path".to_owned(), json!(choice));
    } else {
        harness.insert("name".to_owned(), json!(choice));
    }
    task["harness"] = Value::Object(harness);
    inline_adapter(task, Path::new("."))
}

fn inline_adapter(task: &mut Value, folder: &Path) -> Result<()> {
    let Some(harness) = task.get_mut("harness").and_then(Value::as_object_mut) else {
        return Ok(());
    };
    let Some(path) = harness.remove("path") else {
        return Ok(());
    };
    let path = path.as_str().context("harness.path: must be a string")?;
    let path = folder.join(path);
    let adapter = text(&path)
        .and_then(|text| yaml(&text))
        .with_context(|| format!("harness.path: {}", path.display()))?;
    let name = adapter["name"]
        .as_str()
        .with_context(|| format!("harness.path: {} has no `name`", path.display()))?;
    harness.insert("name".to_owned(), json!(name));
    harness.insert("adapter".to_owned(), adapter);
    Ok(())
}

/// What is wrong with uploads comes back, each with its step.
fn expand_uploads(
    task: &mut Value,
    part: &str,
    list: &str,
    folder: &Path,
    budget: &mut u64,
) -> Vec<anyhow::Error> {
    let mut problems = Vec::new();
    let steps = task.get_mut(part).and_then(|part| part.get_mut(list));
    let Some(steps) = steps.and_then(Value::as_array_mut) else {
        return problems;
    };
    let mut expanded = Vec::with_capacity(steps.len());
    for (index, step) in std::mem::take(steps).into_iter().enumerate() {
        if step["type"] == "upload" {
            let uploaded = upload(&step, folder, budget, &mut expanded);
            problems.extend(uploaded.with_context(|| format!("{part}.{list}[{index}]")).err());
        } else {
            expanded.push(step);
        }
    }
    *steps = expanded;
    problems
}

fn upload(step: &Value, folder: &Path, budget: &mut u64, out: &mut Vec<Value>) -> Result<()> {
    refuse_unknown_keys(step)?;
    let source = step["source"].as_str().context("upload needs `source`, a file or folder")?;
    let target = match &step["target"] {
        Value::Null => ".",
        target => target.as_str().context("`target` of an upload is a path inside")?,
    };
    let source = folder.join(source);
    let mut files = Vec::new();
    collect(&source, &mut files)?;
    for file in files {
        let content = fs::read(&file).with_context(|| format!("read {}", file.display()))?;
        *budget = budget.checked_sub(content.len() as u64).with_context(|| {
            format!(
                "uploads are larger than {} MiB; put large files into the image or fetch them \
                 in an exec step",
                MOST_UPLOAD_BYTES >> 20
            )
        })?;
        let inside = if source.is_dir() {
            Path::new(target).join(file.strip_prefix(&source)?)
        } else {
            PathBuf::from(target)
        };
        out.push(write_file(&inside, &file, content)?);
    }
    Ok(())
}

fn refuse_unknown_keys(step: &Value) -> Result<()> {
    const KNOWN: [&str; 3] = ["type", "source", "target"];
    for key in step.as_object().into_iter().flat_map(Map::keys) {
        if KNOWN.contains(&key.as_str()) {
            continue;
        }
        let likeness = |known: &str| strsim::jaro_winkler(key, known);
        let nearest = KNOWN.into_iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
        match nearest.filter(|known| likeness(known) > 0.75) {
            Some(known) => bail!("`{key}` is no key of an upload; did you mean `{known}`?"),
            None => bail!("`{key}` is no key of an upload; there are {}", KNOWN.join(", ")),
        }
    }
    Ok(())
}

fn write_file(inside: &Path, file: &Path, content: Vec<u8>) -> Result<Value> {
    let path = inside.to_str().with_context(|| format!("{} is not UTF-8", inside.display()))?;
    let mode = fs::metadata(file)?.permissions().mode();
    let (encoding, content) = match String::from_utf8(content) {
        Ok(text) => ("utf8", text),
        Err(binary) => {
            let encoder = base64::engine::general_purpose::STANDARD;
            ("base64", encoder.encode(binary.into_bytes()))
        }
    };
    Ok(json!({
        "type": "write_file",
        "path": path,
        "content": content,
        "encoding": encoding,
        "executable": mode & 0o111 != 0,
    }))
}

fn collect(path: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let kind = fs::symlink_metadata(path).with_context(|| format!("read {}", path.display()))?;
    if kind.is_file() {
        files.push(path.to_owned());
    } else if kind.is_dir() {
        let mut entries: Vec<PathBuf> =
            fs::read_dir(path)?.map(|entry| entry.map(|e| e.path())).collect::<Result<_, _>>()?;
        // The same folder always gives the same task, so that its id stays idempotent.
        entries.sort();
        for entry in entries {
            collect(&entry, files)?;
        }
    } else {
        bail!("{} is neither a file nor a folder; symbolic links are not uploaded", path.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upload_becomes_one_step_per_file() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("repo")).unwrap();
        fs::write(folder.path().join("repo/b.txt"), "text").unwrap();
        fs::write(folder.path().join("repo/a.bin"), [0xff, 0x00]).unwrap();
        let task = parse(
            "harness: pi\nruntime:\n  type: local\n  prepare:\n    \
             - {type: upload, source: repo, target: src}\n",
            folder.path(),
        )
        .unwrap();
        let steps = task["runtime"]["prepare"].as_array().unwrap();
        let hidden = parse(
            "harness: pi\ngrading: {setup: [{type: upload, source: repo, target: src}]}\n",
            folder.path(),
        )
        .unwrap();
        assert_eq!(hidden["grading"]["setup"], task["runtime"]["prepare"]);
        assert_eq!(steps.len(), 2);
        assert_eq!(steps[0]["path"], "src/a.bin");
        assert_eq!(steps[0]["encoding"], "base64");
        assert_eq!(steps[0]["content"], "/wA=");
        assert_eq!(steps[1]["path"], "src/b.txt");
        assert_eq!(steps[1]["content"], "text");
    }

    #[test]
    fn a_file_of_lines_has_a_task_in_each() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tasks.jsonl");
        let odd = json!({"harness": "pi", "instruction": "\u{82}\u{85} # [no: yaml"});
        fs::write(&path, format!("{odd}\n\n{{\"harness\": \"codex\"}}\n")).unwrap();
        let read = read_all(&path).unwrap();
        let place = |line: u32| format!("task file {}, line {line}", path.display());
        let expected = [(odd, place(1)), (json!({"harness": "codex"}), place(3))];
        let expected = expected.map(|(task, place)| Placed { task, place });
        assert_eq!(read, expected);
        fs::write(&path, "{}\nharness: pi\n").unwrap();
        let said = format!("{:#}", read_all(&path).unwrap_err());
        assert!(said.contains("line 2: not JSON"), "{said}");
        fs::write(&path, "\n").unwrap();
        assert!(read_all(&path).is_err());
    }

    #[test]
    fn what_is_wrong_in_several_places_is_told_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let step = |source: &str| json!({"type": "upload", "source": source});
        let task = json!({"harness": "pi", "runtime": {"prepare": [step("a"), step("b")]},
            "grading": {"setup": [step("c")]}});
        let (lines, whole) = (folder.path().join("x.jsonl"), folder.path().join("y.yaml"));
        fs::write(&lines, format!("{task}\nnone\n")).unwrap();
        fs::write(&whole, "a: [").unwrap();
        let missing = folder.path().join("z.yaml");
        let said = format!("{:#}", read_files(&[lines, whole, missing]).unwrap_err());
        for words in [
            "x.jsonl, line 1",
            "runtime.prepare[0]: read",
            "runtime.prepare[1]: read",
            "grading.setup[0]: read",
            "x.jsonl, line 2: not JSON",
            "y.yaml: not valid YAML",
            "z.yaml",
        ] {
            assert!(said.contains(words), "{words}: {said}");
        }
    }

    #[test]
    fn an_upload_with_a_key_it_does_not_have_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a"), "text").unwrap();
        let refused = |step: &str| {
            let task = format!("harness: pi\nruntime: {{prepare: [{step}]}}");
            format!("{:#}", parse(&task, folder.path()).unwrap_err())
        };
        let said = refused("{type: upload, source: a, taget: sub}");
        assert!(said.contains("runtime.prepare[0]") && said.contains("`target`?"), "{said}");
        let said = refused("{type: upload, source: a, executable: true}");
        assert!(said.contains("there are type, source, target"), "{said}");
        let said = refused("{type: upload, source: a, target: 3}");
        assert!(said.contains("a path inside"), "{said}");
    }

    #[test]
    fn text_that_is_not_utf_8_is_refused_with_the_place() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("task.yaml");
        fs::write(&file, b"harness: p\xff").unwrap();
        let said = format!("{:#}", read(&file).unwrap_err());
        assert!(said.contains("task.yaml") && said.contains("offset 10"), "{said}");
    }

    #[test]
    fn a_key_that_comes_twice_is_refused_in_plain_words() {
        let said = format!("{:#}", parse("a: 1\na: 2\n", Path::new(".")).unwrap_err());
        assert!(said.contains("`a`") && said.contains("line 2"), "{said}");
        assert!(!said.contains("Policy") && !said.contains("Options"), "{said}");
    }

    #[test]
    fn a_missing_upload_names_the_step() {
        let error = parse(
            "harness: pi\nruntime: {type: local, prepare: [{type: upload, source: gone}]}",
            Path::new("/nonexistent"),
        )
        .unwrap_err();
        let text = format!("{error:#}");
        assert!(text.contains("runtime.prepare[0]"), "{text}");
        assert!(text.contains("/nonexistent/gone"), "{text}");
    }

    #[test]
    fn an_adapter_path_is_inlined() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("mine.yaml"), "name: mine\ncommand: [mine]\n").unwrap();
        let task = parse("harness: {path: mine.yaml}", folder.path()).unwrap();
        assert_eq!(task["harness"]["name"], "mine");
        assert_eq!(task["harness"]["adapter"]["command"], json!(["mine"]));
    }
}

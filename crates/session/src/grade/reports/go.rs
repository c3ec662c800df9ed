//! `go test`: the lines of `-v`, or the events of `-json`.

use super::{Report, Status};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Event {
    action: String,
    #[serde(default)]
    package: String,
    #[serde(default)]
    test: Option<String>,
}

pub(super) fn read(text: &str) -> Report {
    let mut report = Report::default();
    for line in text.lines() {
        if line.starts_with('{') {
            event(line, &mut report);
        } else if let Some((name, status)) = result(line) {
            report.add(name, status);
        } else if let Some(package) = unbuilt(line) {
            report.add(package, Status::Failed);
        }
    }
    report
}

fn event(line: &str, report: &mut Report) {
    let Ok(event) = serde_json::from_str::<Event>(line) else { return };
    let status = match event.action.as_str() {
        "pass" => Status::Passed,
        "fail" => Status::Failed,
        "skip" => Status::Skipped,
        _ => return,
    };
    match &event.test {
        Some(test) => {
            report.add(&format!("{}.{test}", event.package), status);
            report.also(test, status);
        }
        // A package that cannot be built tells of no test.
        None if status == Status::Failed => report.add(&event.package, status),
        None => {}
    }
}

/// `--- PASS: NAME (0.00s)`, further in for a part of another.
fn result(line: &str) -> Option<(&str, Status)> {
    let (word, rest) = line.trim_start().strip_prefix("--- ")?.split_once(": ")?;
    let status = match word {
        "PASS" => Status::Passed,
        "FAIL" => Status::Failed,
        "SKIP" => Status::Skipped,
        _ => return None,
    };
    Some((rest.rsplit_once(" (")?.0, status))
}

/// `FAIL PACKAGE [build failed]`.
fn unbuilt(line: &str) -> Option<&str> {
    let (package, why) = line.strip_prefix("FAIL\t")?.split_once(" [")?;
    why.ends_with("failed]").then_some(package)
}

//! `cargo test`: the lines of each test binary, between its start and its failures.

use super::{Report, Status};

/// What follows the name of a test with an expectation of its own.
const MARKS: [&str; 3] = [" - should panic", " - compile fail", " - compile"];

pub(super) fn read(text: &str) -> Report {
    let mut report = Report::default();
    let mut telling = false;
    for line in text.lines() {
        if line.starts_with("running ") && line.trim_end().ends_with(['t', 's']) {
            telling = true;
        } else if line == "failures:" || line == "successes:" || line.starts_with("test result: ") {
            // What follows may be what tests printed.
            telling = false;
        } else if telling && let Some((name, status)) = result(line) {
            report.add(name, status);
        }
    }
    report
}

/// `test NAME ... ok`.
fn result(line: &str) -> Option<(&str, Status)> {
    let (name, end) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    let status = match end.split([' ', ',']).next()? {
        "ok" => Status::Passed,
        "FAILED" => Status::Failed,
        "ignored" => Status::Skipped,
        _ => return None,
    };
    let name = MARKS.iter().find_map(|mark| name.strip_suffix(mark)).unwrap_or(name);
    Some((name, status))
}

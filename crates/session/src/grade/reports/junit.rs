//! JUnit XML, as pytest, node, Maven, Gradle and many others write it.

use super::{Report, Status};
use roxmltree::{Document, Node};

pub(super) fn read(text: &str) -> Result<Report, String> {
    let document = Document::parse(text.trim_start_matches('\u{feff}').trim())
        .map_err(|error| format!("not valid XML: {error}"))?;
    let mut report = Report::default();
    let cases = document.descendants().filter(|node| node.has_tag_name("testcase"));
    for case in cases {
        let name = case.attribute("name").unwrap_or_default();
        let status = status(case);
        match case.attribute("classname").or_else(|| case.attribute("class")) {
            Some(class) if !class.is_empty() => {
                report.add(&format!("{class}::{name}"), status);
                report.also(name, status);
                report.also(&format!("{class}.{name}"), status);
            }
            _ => report.add(name, status),
        }
    }
    Ok(report)
}

fn status(case: Node<'_, '_>) -> Status {
    let child = |name: &str| case.children().find(|node| node.has_tag_name(name));
    if let Some(skipped) = child("skipped") {
        // pytest tells an expected failure in this way.
        return match skipped.attribute("type") {
            Some("pytest.xfail") => Status::Passed,
            _ => Status::Skipped,
        };
    }
    if child("failure").is_some() || child("error").is_some() {
        return Status::Failed;
    }
    Status::Passed
}

//! Test Anything Protocol, with subtests further in, as node and Perl write it.

use super::{Report, Status};

pub(super) fn read(text: &str) -> Report {
    let mut report = Report::default();
    // Those whose parent is still to come: a parent's line follows its children's.
    let mut waiting: Vec<(usize, String, Status)> = Vec::new();
    let (mut plan, mut told) = (None, 0_u64);
    let mut details_at = None;
    for line in text.lines() {
        let line = line.trim_end();
        let inside = line.trim_start();
        let depth = line.len() - inside.len();
        match details_at {
            Some(at) => {
                if inside == "..." && depth == at {
                    details_at = None;
                }
                continue;
            }
            None if inside == "---" => {
                details_at = Some(depth);
                continue;
            }
            None => {}
        }
        if let Some(test) = result(inside) {
            told += u64::from(depth == 0);
            settle(&mut waiting, depth, &test.0, &mut report);
            report_one(depth, test, &mut waiting, &mut report);
        } else if depth == 0
            && let Some(last) = inside.strip_prefix("1..")
        {
            plan = last.split(' ').next().and_then(|last| last.parse::<u64>().ok());
        } else if inside.starts_with("Bail out!") {
            report.add(inside, Status::Failed);
        }
    }
    if let Some(plan) = plan.filter(|plan| *plan > told) {
        report.add(&format!("{} of the plan's {plan} tests", plan - told), Status::Failed);
    }
    report
}

fn report_one(
    depth: usize,
    (name, status): (String, Status),
    waiting: &mut Vec<(usize, String, Status)>,
    report: &mut Report,
) {
    if depth == 0 {
        report.add(&name, status);
    } else {
        report.also(&name, status);
        waiting.push((depth, name, status));
    }
}

/// Gives those further in than `depth` the name of their parent, which is known now.
fn settle(
    waiting: &mut Vec<(usize, String, Status)>,
    depth: usize,
    parent: &str,
    report: &mut Report,
) {
    for (at, name, status) in std::mem::take(waiting) {
        if at <= depth {
            waiting.push((at, name, status));
            continue;
        }
        let name = format!("{parent} > {name}");
        match depth {
            0 => report.add(&name, status),
            _ => waiting.push((depth, name, status)),
        }
    }
}

/// `ok 1 - NAME # SKIP reason` and the like; the number where there is no name.
fn result(line: &str) -> Option<(String, Status)> {
    let (passed, rest) = match line.strip_prefix("not ok") {
        Some(rest) => (false, rest),
        None => (true, line.strip_prefix("ok")?),
    };
    if !rest.is_empty() && !rest.starts_with(' ') {
        return None;
    }
    let (told, directive) = match directive_at(rest) {
        Some(at) => (&rest[..at], rest[at..].trim_start_matches([' ', '#'])),
        None => (rest, ""),
    };
    let told = told.trim();
    let digits = told.len() - told.trim_start_matches(|letter: char| letter.is_ascii_digit()).len();
    let (number, name) = told.split_at(digits);
    let name = name.trim_start();
    let name = name.strip_prefix('-').unwrap_or(name).trim();
    let name =
        if name.is_empty() { number } else { name }.replace("\\#", "#").replace("\\\\", "\\");
    let directive = directive.to_ascii_uppercase();
    let status = match passed {
        _ if directive.starts_with("SKIP") || directive.starts_with("TODO") => Status::Skipped,
        true => Status::Passed,
        false => Status::Failed,
    };
    Some((name, status))
}

/// Where a `#` begins that is not escaped.
fn directive_at(text: &str) -> Option<usize> {
    text.match_indices(" #").map(|(at, _)| at).find(|at| {
        let word = text[at + 2..].trim_start().to_ascii_uppercase();
        word.starts_with("SKIP") || word.starts_with("TODO")
    })
}

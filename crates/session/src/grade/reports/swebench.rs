//! Logs of tests as SWE-bench's harness reads them, so that the same log gives the same verdict.
//!
//! Other than the readers beside it, the last result of a name counts here, wherever in the log
//! it is: those are the benchmark's rules, and its lists of names were made by them.

use polar_types::SwebenchLogParser;
use std::collections::HashMap;

/// What became of a test, in the words of the logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Outcome {
    Passed,
    Xfail,
    Skipped,
    Failed,
    Error,
}

impl Outcome {
    /// For a test that fails before the work.
    pub(in super::super) fn is_fixed(self) -> bool {
        matches!(self, Self::Passed | Self::Xfail)
    }

    /// For a test that passes before the work.
    pub(in super::super) fn is_maintained(self) -> bool {
        self.is_fixed() || self == Self::Skipped
    }

    fn of(word: &str) -> Option<Self> {
        match word {
            "PASSED" => Some(Self::Passed),
            "XFAIL" => Some(Self::Xfail),
            "SKIPPED" => Some(Self::Skipped),
            "FAILED" => Some(Self::Failed),
            "ERROR" => Some(Self::Error),
            _ => None,
        }
    }
}

type Results = HashMap<String, Outcome>;

/// Reads a log.
pub(in super::super) fn read(parser: SwebenchLogParser, log: &str) -> Results {
    match parser {
        SwebenchLogParser::Pytest => pytest(log, |_| None, str::to_owned),
        SwebenchLogParser::PytestOptions => pytest(log, |_| None, without_folders),
        SwebenchLogParser::PytestV2 => pytest(log, |line| Some(without_codes(line)), str::to_owned),
        SwebenchLogParser::Matplotlib => {
            pytest(log, |line| Some(mouse_buttons(line)), str::to_owned)
        }
        SwebenchLogParser::Seaborn => pytest(log, |_| None, str::to_owned),
        SwebenchLogParser::Django => django(log),
        SwebenchLogParser::Sympy => sympy(log),
    }
}

fn pytest(
    log: &str,
    clean: impl Fn(&str) -> Option<String>,
    name: impl Fn(&str) -> String,
) -> Results {
    let mut results = Results::new();
    for line in log.split('\n') {
        let cleaned = clean(line);
        let line = cleaned.as_deref().unwrap_or(line);
        if let Some((test, outcome)) = pytest_line(line) {
            results.insert(name(test), outcome);
        }
    }
    results
}

/// `PASSED NAME`, or `NAME PASSED`; a name ends at a blank.
fn pytest_line(line: &str) -> Option<(&str, Outcome)> {
    if line.starts_with(char::is_whitespace) {
        return None;
    }
    let mut words = line.split_whitespace();
    let (first, second) = (words.next()?, words.next()?);
    match (Outcome::of(first), Outcome::of(second)) {
        // Skips are told by number and place, which is no name.
        (Some(Outcome::Skipped), _) if is_count(second) => None,
        (Some(outcome), _) => Some((second, outcome)),
        (None, Some(outcome)) => Some((first, outcome)),
        (None, None) => None,
    }
}

fn is_count(word: &str) -> bool {
    let digits = word.strip_prefix('[').and_then(|word| word.split_once(']'));
    digits.is_some_and(|(digits, _)| {
        !digits.is_empty() && digits.bytes().all(|letter| letter.is_ascii_digit())
    })
}

/// `name[/a/b/c]` is `name[/c]`.
fn without_folders(name: &str) -> String {
    let (Some(from), Some(to)) = (name.find('['), name.rfind(']')) else { return name.to_owned() };
    if from > to {
        return name.to_owned();
    }
    let option = &name[from + 1..to];
    if option.starts_with('/') && !option.starts_with("//") && !option.contains('*') {
        let last = option.rsplit('/').next().unwrap_or(option);
        return format!("{}[/{last}]", &name[..from]);
    }
    format!("{}[{option}]", &name[..from])
}

/// Without colours and other control letters.
fn without_codes(line: &str) -> String {
    let mut text = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find('[') {
        let after = &rest[at + 1..];
        let digits = after.len() - after.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        if digits > 0 && after[digits..].starts_with('m') {
            text.push_str(&rest[..at]);
            rest = &after[digits + 1..];
        } else {
            text.push_str(&rest[..=at]);
            rest = after;
        }
    }
    text.push_str(rest);
    text.retain(|letter| !('\u{1}'..'\u{20}').contains(&letter));
    text
}

fn mouse_buttons(line: &str) -> String {
    line.replace("MouseButton.LEFT", "1").replace("MouseButton.RIGHT", "3")
}

fn django(log: &str) -> Results {
    let mut results = Results::new();
    let mut before: Option<&str> = None;
    for line in log.split('\n').map(str::trim) {
        if line.contains("--version is equivalent to version") {
            results.insert("--version is equivalent to version".to_owned(), Outcome::Passed);
        }
        if let Some((name, _)) = line.split_once(" ... ") {
            before = Some(name);
        }
        let ok = [" ... ok", " ... OK", " ...  OK"].iter().find_map(|end| line.strip_suffix(end));
        if let Some(name) = ok {
            let migration = "Applying sites.0002_alter_domain_unique...test_no_migrations";
            let name = match line.starts_with(migration) {
                true => name.split_once("...").map_or(name, |(_, name)| name.trim()),
                false => name,
            };
            results.insert(name.to_owned(), Outcome::Passed);
        }
        if let Some((name, _)) = line.split_once(" ... skipped") {
            results.insert(name.to_owned(), Outcome::Skipped);
        }
        for (end, start, outcome) in
            [(" ... FAIL", "FAIL:", Outcome::Failed), (" ... ERROR", "ERROR:", Outcome::Error)]
        {
            if let Some(name) = line.strip_suffix(end) {
                results.insert(name.to_owned(), outcome);
            }
            if let Some(name) = line.strip_prefix(start).and_then(|r| r.split_whitespace().next()) {
                results.insert(name.to_owned(), outcome);
            }
        }
        // What a test prints stands between its name and its end.
        if line.starts_with("ok")
            && let Some(name) = before
        {
            results.insert(name.to_owned(), Outcome::Passed);
        }
    }
    results
}

fn sympy(log: &str) -> Results {
    let mut results = Results::new();
    for line in log.split('\n') {
        // `____ sympy/core/tests/test_a.py:test_b ____`
        let name = line.trim_matches('_');
        if line.starts_with('_') && name.contains(".py:") {
            results.insert(name.trim().to_owned(), Outcome::Failed);
        }
        let line = line.trim();
        let outcome = match line {
            _ if !line.starts_with("test_") => continue,
            _ if line.ends_with(" E") => Outcome::Error,
            _ if line.ends_with(" F") => Outcome::Failed,
            _ if line.ends_with(" ok") => Outcome::Passed,
            _ => continue,
        };
        if let Some(name) = line.split_whitespace().next() {
            results.insert(name.to_owned(), outcome);
        }
    }
    results
}

#[cfg(test)]
mod tests {
    use super::*;
    use Outcome::{Error, Failed, Passed, Skipped, Xfail};

    fn expect(parser: SwebenchLogParser, log: &str, expected: &[(&str, Outcome)]) {
        let found = read(parser, log);
        for (name, outcome) in expected {
            assert_eq!(found.get(*name), Some(outcome), "{name} in {found:?}");
        }
        assert_eq!(found.len(), expected.len(), "{found:?}");
    }

    #[test]
    fn pytest_logs_give_names_up_to_a_blank() {
        let log = include_str!("../../../tests/reports/pytest-rA.txt");
        expect(
            SwebenchLogParser::Pytest,
            log,
            &[
                ("tests/test_mix.py::TestGroup::test_in_class", Passed),
                ("tests/test_mix.py::test_passes", Passed),
                ("tests/test_mix.py::test_values[a", Passed),
                ("tests/test_mix.py::test_values[x[y]]", Passed),
                (r"tests/test_mix.py::test_values[\xe9]", Passed),
                ("tests/test_mix.py::test_expected_failure", Xfail),
                ("tests/test_mix.py::test_error", Error),
                // A heading, which no list of names has in it.
                ("_________________________", Error),
                // What the test itself printed comes before.
                ("tests/test_mix.py::test_fails", Failed),
                ("tests/test_mix.py::test_values[1]", Failed),
            ],
        );
        let verbose = "a.py::b PASSED [ 50%]\na.py::c SKIPPED (why)\n  a.py::d PASSED\nSKIPPED [1] a.py:3: no";
        expect(SwebenchLogParser::Seaborn, verbose, &[("a.py::b", Passed), ("a.py::c", Skipped)]);
    }

    #[test]
    fn options_colours_and_mouse_buttons_are_cleaned() {
        expect(
            SwebenchLogParser::PytestOptions,
            "PASSED t.py::a[/tmp/x/file.dcm]\nFAILED t.py::b[//host/x] - no\nPASSED t.py::c[x*/y]",
            &[
                ("t.py::a[/file.dcm]", Passed),
                ("t.py::b[//host/x]", Failed),
                ("t.py::c[x*/y]", Passed),
            ],
        );
        expect(
            SwebenchLogParser::PytestV2,
            "\u{1b}[32mPASSED\u{1b}[0m t.py::\u{1b}[1ma[2]\u{1b}[0m\nt.py::b \u{1b}[31mFAILED\u{1b}[0m [ 1%]",
            &[("t.py::a[2]", Passed), ("t.py::b", Failed)],
        );
        expect(
            SwebenchLogParser::Matplotlib,
            "PASSED t.py::a[MouseButton.LEFT]",
            &[("t.py::a[1]", Passed)],
        );
    }

    #[test]
    fn runners_of_their_own_are_read() {
        let django = "test_a (x.Tests) ... ok\ntest_b (x.Tests) ... FAIL\n\
            test_c (x.Tests) ... skipped 'why'\ntest_d (x.Tests) ... ERROR\n\
            test_e (x.Tests) ... printed\nok\nFAIL: test_b (x.Tests)\n";
        expect(
            SwebenchLogParser::Django,
            django,
            &[
                ("test_a (x.Tests)", Passed),
                ("test_b (x.Tests)", Failed),
                ("test_c (x.Tests)", Skipped),
                ("test_d (x.Tests)", Error),
                ("test_e (x.Tests)", Passed),
                ("test_b", Failed),
            ],
        );
        let sympy = "test_a ok\ntest_b F\ntest_c E\n\
            ______ sympy/core/tests/test_x.py:test_b ______\n";
        expect(
            SwebenchLogParser::Sympy,
            sympy,
            &[
                ("test_a", Passed),
                ("test_b", Failed),
                ("test_c", Error),
                ("sympy/core/tests/test_x.py:test_b", Failed),
            ],
        );
    }
}

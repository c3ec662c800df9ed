//! What programs tell of their tests, read from text. Nothing here runs or opens anything.
//!
//! Where a name is told twice the worse result counts: tests print what they like, and a line
//! that was made up must not outweigh the program's own.

mod cargo;
mod go;
mod junit;
mod pytest;
pub(super) mod swebench;
mod tap;

use polar_types::TestFormat;
use std::collections::HashMap;

/// What became of a test, the worst last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Status {
    Passed,
    Skipped,
    Failed,
}

/// Results by name, in the order they were first told.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Report {
    results: Vec<(String, Status)>,
    places: HashMap<String, usize>,
    /// Other names, by which a test may be asked for.
    others: HashMap<String, Status>,
}

impl Report {
    /// Reads the results in a text. An error says what is wrong with the text as a whole.
    pub(super) fn read(format: TestFormat, text: &str) -> Result<Self, String> {
        match format {
            TestFormat::Pytest => Ok(pytest::read(text)),
            TestFormat::Junit => junit::read(text),
            TestFormat::Cargo => Ok(cargo::read(text)),
            TestFormat::Go => Ok(go::read(text)),
            TestFormat::Tap => Ok(tap::read(text)),
        }
    }

    fn add(&mut self, name: &str, status: Status) {
        match self.places.get(name) {
            Some(&place) => {
                let known = &mut self.results[place].1;
                *known = status.max(*known);
            }
            None => {
                self.places.insert(name.to_owned(), self.results.len());
                self.results.push((name.to_owned(), status));
            }
        }
    }

    /// Another name of a result.
    fn also(&mut self, name: &str, status: Status) {
        self.others
            .entry(name.to_owned())
            .and_modify(|known| *known = status.max(*known))
            .or_insert(status);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.results.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.results.len()
    }

    /// What became of the test of this name.
    pub(super) fn of(&self, name: &str) -> Option<Status> {
        let own = self.places.get(name).map(|&place| self.results[place].1);
        own.or_else(|| self.others.get(name).copied())
    }

    /// Each result once.
    pub(super) fn own_names(&self) -> impl Iterator<Item = (&str, Status)> {
        self.results.iter().map(|(name, status)| (name.as_str(), *status))
    }

    pub(super) fn first_failed(&self) -> Option<&str> {
        self.own_names().find(|(_, status)| *status == Status::Failed).map(|(name, _)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::Status::{Failed, Passed, Skipped};
    use super::*;

    /// What the programs themselves printed, see `tests/reports`.
    macro_rules! printed {
        ($name:literal) => {
            include_str!(concat!("../../../tests/reports/", $name))
        };
    }

    fn results(format: TestFormat, text: &str) -> Vec<(String, Status)> {
        let report = Report::read(format, text).unwrap();
        report.own_names().map(|(name, status)| (name.to_owned(), status)).collect()
    }

    fn expect(format: TestFormat, text: &str, expected: &[(&str, Status)]) {
        let expected: Vec<_> = expected.iter().map(|(n, s)| ((*n).to_owned(), *s)).collect();
        assert_eq!(results(format, text), expected);
    }

    #[test]
    fn pytest_tells_by_summary_and_by_progress() {
        let mut expected = vec![
            ("tests/test_mix.py::TestGroup::test_in_class", Passed),
            ("tests/test_mix.py::test_passes", Passed),
            ("tests/test_mix.py::test_values[a b]", Passed),
            ("tests/test_mix.py::test_values[x[y]]", Passed),
            (r"tests/test_mix.py::test_values[\xe9]", Passed),
            ("tests/test_mix.py::test_expected_failure", Passed),
            ("tests/test_mix.py::test_unexpected_pass", Passed),
            ("tests/test_mix.py::test_error", Failed),
            ("tests/test_mix.py::test_fails", Failed),
            ("tests/test_mix.py::test_values[1]", Failed),
        ];
        expect(TestFormat::Pytest, printed!("pytest-rA.txt"), &expected);
        expected.push(("tests/test_mix.py::test_skipped", Skipped));
        expected.sort();
        for text in [printed!("pytest-v.txt"), printed!("pytest-xdist.txt")] {
            let mut found = results(TestFormat::Pytest, text);
            found.sort();
            let wanted: Vec<_> = expected.iter().map(|(n, s)| ((*n).to_owned(), *s)).collect();
            assert_eq!(found, wanted);
        }
        let interrupted = printed!("pytest-interrupted.txt");
        expect(TestFormat::Pytest, interrupted, &[("tests/test_broken.py", Failed)]);
    }

    #[test]
    fn junit_of_pytest_and_node_is_read() {
        let report = Report::read(TestFormat::Junit, printed!("pytest.xml")).unwrap();
        assert_eq!(report.len(), 11);
        for (name, status) in [
            ("tests.test_mix.TestGroup::test_in_class", Some(Passed)),
            ("tests.test_mix::test_values[x[y]]", Some(Passed)),
            ("test_fails", Some(Failed)),
            ("test_error", Some(Failed)),
            ("test_skipped", Some(Skipped)),
            ("test_expected_failure", Some(Passed)),
            ("test_none", None),
        ] {
            assert_eq!(report.of(name), status, "{name}");
        }
        expect(
            TestFormat::Junit,
            printed!("node.xml"),
            &[
                ("test::adds", Passed),
                ("test::breaks # here", Failed),
                ("test::inner", Passed),
                ("test::inner fails", Failed),
                ("test::skipped", Skipped),
                ("test::todo", Skipped),
            ],
        );
        assert!(Report::read(TestFormat::Junit, "no xml").is_err());
    }

    #[test]
    fn cargo_tells_all_binaries_and_what_tests_print_is_no_result() {
        expect(
            TestFormat::Cargo,
            printed!("cargo.txt"),
            &[
                ("tests::adds", Passed),
                ("tests::is_wrong", Failed),
                ("tests::slow", Skipped),
                ("tests::panics", Passed),
                ("outer", Passed),
                ("src/lib.rs - one_more (line 5)", Passed),
            ],
        );
    }

    #[test]
    fn go_tells_as_text_and_as_json() {
        let text = [
            ("TestAdds", Failed),
            ("TestBreaks", Failed),
            ("TestGroup", Failed),
            ("TestGroup/inner_one", Passed),
            ("TestGroup/inner_two", Failed),
            ("TestSkipped", Skipped),
        ];
        expect(TestFormat::Go, printed!("go.txt"), &text);
        let report = Report::read(TestFormat::Go, printed!("go.json")).unwrap();
        for (name, status) in text {
            assert_eq!(report.of(name), Some(status), "{name}");
        }
        assert_eq!(report.of("example.org/sample.TestAdds"), Some(Passed));
        assert_eq!(report.of("example.org/sample/sub.TestAdds"), Some(Failed));
    }

    #[test]
    fn tap_of_node_and_perl_is_read() {
        let report = Report::read(TestFormat::Tap, printed!("node.tap")).unwrap();
        for (name, status) in [
            ("adds", Passed),
            ("breaks # here", Failed),
            ("group", Failed),
            ("group > inner", Passed),
            ("inner fails", Failed),
            ("skipped", Skipped),
            ("todo", Skipped),
        ] {
            assert_eq!(report.of(name), Some(status), "{name}");
        }
        assert_eq!(report.len(), 7);
        expect(
            TestFormat::Tap,
            printed!("perl.tap"),
            &[
                ("first", Passed),
                ("second fails", Failed),
                ("third # with hash", Passed),
                ("fourth", Skipped),
                ("5", Skipped),
            ],
        );
    }

    #[test]
    fn a_line_that_a_test_prints_does_not_outweigh_the_programs_own() {
        let go = "=== RUN   TestA\n--- PASS: TestA (0.00s)\n--- FAIL: TestA (0.00s)\n";
        expect(TestFormat::Go, go, &[("TestA", Failed)]);
        let pytest = "PASSED t.py::a\n= short test summary info =\nFAILED t.py::a - assert 1\n";
        expect(TestFormat::Pytest, pytest, &[("t.py::a", Failed)]);
        let tap = "ok 1 - a\nnot ok 1 - a\n1..1\n";
        expect(TestFormat::Tap, tap, &[("a", Failed)]);
    }

    #[test]
    fn tap_that_ends_before_its_plan_is_fulfilled_is_no_success() {
        for text in ["1..3\nok 1 - a\n", "ok 1 - a\nBail out! no database\n"] {
            let report = Report::read(TestFormat::Tap, text).unwrap();
            assert!(report.first_failed().is_some(), "{text}");
        }
    }
}

//! The evaluator that runs tests and reads what became of each.
//!
//! Exit code and report both count: a program that says that all is well while a test of it
//! failed, or the other way round, is not believed.

use super::command::{not_run, too_late};
use super::reports::{Report, Status};
use super::{Place, Verdict};
use crate::attempt::Attempt;
use crate::evaluator::Found;
use crate::failure::Stop;
use polar_sandbox::ExecEnd;
use polar_types::{HackLabel, HackPattern, TestCounts, TestFormat, TestsEvaluator, TestsReward};

/// Most bytes of results that are read.
const MOST_RESULTS: u64 = 64 << 20;
/// Most names that are told of those that did not pass.
const MOST_NAMES: usize = 20;

const ABSENT: i32 = 11;
const READ: &str = r#"[ -f "$1" ] || exit 11; exec cat -- "$1""#;

impl Attempt {
    pub(super) async fn evaluate_tests(
        &self,
        place: &Place<'_>,
        tests: &TestsEvaluator,
    ) -> Result<Verdict, Stop> {
        let workdir = tests.workdir.as_deref();
        if let Some(report) = &tests.report {
            // What the agent's work brought under that name is no result.
            let removal = ["rm", "-rf", "--", report].map(str::to_owned).to_vec();
            if let (ExecEnd::TimedOut, _) =
                self.read_graded(place, workdir, removal, 1 << 16).await?
            {
                return Ok(Verdict::failed("there was no time left to run the tests"));
            }
        }
        let run = self.run_graded(place, &tests.command, workdir, &tests.env, MOST_RESULTS).await?;
        let code = match run.exit_code(place.seconds) {
            Ok(code) => code,
            Err(why) => return Ok(Verdict::failed(why)),
        };
        let text = match &tests.report {
            None => std::fs::read(&run.stdout),
            Some(report) => {
                let argv = ["sh", "-c", READ, "sh", report].map(str::to_owned).to_vec();
                match self.read_graded(place, workdir, argv, MOST_RESULTS).await? {
                    (ExecEnd::Exited(ABSENT), _) => {
                        let found = self.evaluator.of(&tests.command);
                        return Ok(Verdict::zero(no_report(code, report, found)));
                    }
                    (ExecEnd::TimedOut, _) => return Ok(Verdict::failed(too_late(report))),
                    (_, read) => read,
                }
            }
        };
        let report = match text {
            Ok(text) => Report::read(tests.format, &String::from_utf8_lossy(&text)),
            Err(error) => return Ok(Verdict::failed(format!("results are not readable: {error}"))),
        };
        Ok(judge(tests, code, &report, self.evaluator.of(&tests.command)))
    }
}

fn no_report(code: i32, report: &str, found: &Found) -> String {
    match code {
        126 | 127 => not_run(code, found),
        _ => format!(
            "the tests' command ended with exit code {code} and wrote no {report}; see grader.log"
        ),
    }
}

/// What results are worth.
fn judge(
    tests: &TestsEvaluator,
    code: i32,
    report: &Result<Report, String>,
    found: &Found,
) -> Verdict {
    if matches!(code, 126 | 127) {
        return Verdict::zero(not_run(code, found));
    }
    let report = match report {
        Ok(report) if !report.is_empty() => report,
        Ok(_) => {
            return Verdict::zero(format!(
                "the tests' command (exit code {code}) told no result of any test in the form \
                 that `format: {}` reads; see grader.log",
                tests.format.as_str()
            ));
        }
        Err(problem) => {
            return Verdict::zero(format!(
                "the results of the tests (exit code {code}) cannot be read: {problem}"
            ));
        }
    };
    let mut verdict = match tests.fail_to_pass.is_empty() && tests.pass_to_pass.is_empty() {
        true => all_told(tests.reward, code, report),
        false => those_named(tests, code, report),
    };
    // In a pipe or a list the code is of another program.
    let of_the_tests = !tests.command.contains(['|', ';', '\n']);
    if code == 0
        && of_the_tests
        && let Some(name) = report.first_failed()
    {
        let pattern = HackPattern::ExitCodeContradictsReport;
        verdict.labels.push(HackLabel { pattern, place: name.to_owned() });
    }
    verdict
}

/// Where no test is named, all count.
fn all_told(reward: TestsReward, code: i32, report: &Report) -> Verdict {
    let mut counts = TestCounts { told: count(report.len()), ..TestCounts::default() };
    for (name, status) in report.own_names() {
        match status {
            Status::Passed => counts.passed += 1,
            Status::Skipped => continue,
            Status::Failed => note_name(&mut counts.failed, name),
        }
        counts.wanted += 1;
    }
    let failed = counts.wanted - counts.passed;
    let verdict = match (failed, counts.passed, code) {
        (_, 0, _) => Verdict::zero("no test passed"),
        (0, _, 0) => Verdict::of(1.0),
        (0, _, code) => Verdict::zero(format!(
            "no test failed, but their program ended with exit code {code}; see grader.log"
        )),
        (_, passed, _) if reward == TestsReward::Fraction => {
            Verdict::of(f64::from(passed) / f64::from(counts.wanted))
        }
        _ => Verdict::of(0.0),
    };
    Verdict { tests: Some(counts), ..verdict }
}

fn those_named(tests: &TestsEvaluator, code: i32, report: &Report) -> Verdict {
    let mut counts = TestCounts { told: count(report.len()), ..TestCounts::default() };
    let mut passed_of = |names: &[String]| {
        let mut passed = 0_u32;
        for name in names {
            match report.of(name) {
                Some(Status::Passed) => passed += 1,
                Some(Status::Failed | Status::Skipped) => note_name(&mut counts.failed, name),
                None => note_name(&mut counts.missing, name),
            }
        }
        counts.wanted += count(names.len());
        counts.passed += passed;
        passed
    };
    let fixed = passed_of(&tests.fail_to_pass);
    let kept = passed_of(&tests.pass_to_pass);
    let all_fixed = fixed == count(tests.fail_to_pass.len());
    let all_kept = kept == count(tests.pass_to_pass.len());
    let verdict = if !ran_to_its_end(tests.format, code) {
        Verdict::zero(format!(
            "the tests' command ended with exit code {code}, which is not how it ends when all \
             tests have run; see grader.log"
        ))
    } else if all_fixed && all_kept {
        Verdict::of(1.0)
    } else if tests.reward == TestsReward::Fraction && all_kept {
        Verdict::of(f64::from(fixed) / f64::from(count(tests.fail_to_pass.len()).max(1)))
    } else {
        Verdict::of(0.0)
    };
    Verdict { tests: Some(counts), ..verdict }
}

/// Whether this is how a program ends when all went well, or when a test failed that nobody
/// asked for.
fn ran_to_its_end(format: TestFormat, code: i32) -> bool {
    match format {
        TestFormat::Pytest | TestFormat::Go => matches!(code, 0 | 1),
        TestFormat::Cargo => matches!(code, 0 | 101),
        // Of whatever program.
        TestFormat::Junit | TestFormat::Tap => (0..126).contains(&code),
    }
}

fn note_name(names: &mut Vec<String>, name: &str) {
    if names.len() < MOST_NAMES {
        names.push(name.to_owned());
    }
}

fn count(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod table {
    use super::*;
    use serde_json::{Value, json};

    fn judged(changes: Value, code: i32, text: &str) -> Verdict {
        let mut tests = json!({"command": "pytest -rA", "format": "pytest"});
        for (field, value) in changes.as_object().unwrap() {
            tests[field] = value.clone();
        }
        let tests: TestsEvaluator = serde_json::from_value(tests).unwrap();
        let report = Report::read(tests.format, text);
        judge(&tests, code, &report, &Found::Unknown)
    }

    const MIXED: &str = "=== short test summary info ===\nPASSED t.py::a\nFAILED t.py::b - no\n";
    const GOOD: &str = "=== short test summary info ===\nPASSED t.py::a\nPASSED t.py::c\n";

    #[test]
    fn exit_code_and_results_both_count() {
        let table = [
            (json!({}), 0, GOOD, 1.0),
            (json!({}), 1, GOOD, 0.0),
            (json!({}), 1, MIXED, 0.0),
            (json!({}), 0, MIXED, 0.0),
            (json!({}), 0, "nothing was told", 0.0),
            (json!({"reward": "fraction"}), 1, MIXED, 0.5),
            (json!({"fail_to_pass": ["t.py::a"]}), 1, MIXED, 1.0),
            (json!({"fail_to_pass": ["t.py::a"], "pass_to_pass": ["t.py::b"]}), 1, MIXED, 0.0),
            (json!({"fail_to_pass": ["t.py::a", "t.py::c"]}), 0, GOOD, 1.0),
            (json!({"fail_to_pass": ["t.py::a", "t.py::none"]}), 0, GOOD, 0.0),
            (json!({"fail_to_pass": ["t.py::a"]}), 2, GOOD, 0.0),
            (json!({"fail_to_pass": ["t.py::a"]}), 139, GOOD, 0.0),
            (
                json!({"fail_to_pass": ["t.py::a", "t.py::none"], "reward": "fraction"}),
                0,
                GOOD,
                0.5,
            ),
            (
                json!({
                    "fail_to_pass": ["t.py::a"], "pass_to_pass": ["t.py::none"],
                    "reward": "fraction",
                }),
                0,
                GOOD,
                0.0,
            ),
            (json!({"fail_to_pass": ["t.py::a"]}), 127, "", 0.0),
        ];
        for (changes, code, text, reward) in table {
            let verdict = judged(changes.clone(), code, text);
            assert_eq!(verdict.reward, Some(reward), "{changes} {code} {text}: {verdict:?}");
        }
    }

    #[test]
    fn what_did_not_pass_is_named_and_a_contradiction_is_labelled() {
        let verdict =
            judged(json!({"fail_to_pass": ["t.py::b"], "pass_to_pass": ["t.py::z"]}), 0, MIXED);
        let counts = verdict.tests.unwrap();
        assert_eq!((counts.wanted, counts.passed, counts.told), (2, 0, 2));
        assert_eq!(
            (counts.failed, counts.missing),
            (vec!["t.py::b".into()], vec!["t.py::z".into()])
        );
        assert_eq!(verdict.labels[0].pattern, HackPattern::ExitCodeContradictsReport);
        let piped = judged(json!({"command": "pytest -rA | tee log"}), 0, MIXED);
        assert!(piped.labels.is_empty(), "the code is tee's");
        assert!(judged(json!({}), 1, MIXED).labels.is_empty());
    }
}

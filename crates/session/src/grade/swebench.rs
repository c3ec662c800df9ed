//! The evaluator of SWE-bench and SWE-Gym instances.
//!
//! As the benchmark's harness does it: the files of the test patch are taken back to the base
//! commit (new ones are removed), the patch is applied, the tests run, and the log is read. The
//! instance is resolved when all of both lists hold; the exit code says nothing.

use super::reports::swebench::{self, Outcome};
use super::{Place, Verdict};
use crate::attempt::Attempt;
use crate::evaluator::base_of;
use crate::failure::Stop;
use polar_types::{SwebenchEvaluator, SwebenchLogParser, TestCounts};
use std::collections::{BTreeMap, HashMap};

/// Most bytes of a log that are read.
const MOST_LOG: u64 = 256 << 20;
/// Most names that are told of those that did not hold.
const MOST_NAMES: usize = 20;
/// Around what the tests print: nothing before or after it is a result.
const START: &str = ">>>>> Start Test Output";
const END: &str = ">>>>> End Test Output";
const NOT_RESET: i32 = 94;
const NOT_APPLIED: i32 = 95;

/// Puts the tests in place and runs them. Names of files come as lists with line feeds.
const RUN: &str = r#"git() { command git -c safe.directory='*' -c core.hooksPath=/dev/null "$@"; }
base=${POLAR_BASE:-HEAD}
printf '%s' "$POLAR_CHANGED" | while IFS= read -r file; do
    git checkout -q "$base" -- "$file" || exit 1
done || exit 94
printf '%s' "$POLAR_ADDED" | while IFS= read -r file; do rm -rf -- "$file"; done
git apply -v "$POLAR_PATCH" || exit 95
unset POLAR_BASE POLAR_CHANGED POLAR_ADDED POLAR_PATCH
command -v bash >/dev/null && shell=bash || shell=sh
command=$POLAR_COMMAND; unset POLAR_COMMAND
echo '>>>>> Start Test Output'
"$shell" -c "$command" 2>&1
code=$?
echo
echo '>>>>> End Test Output'
exit $code"#;

impl Attempt {
    pub(super) async fn evaluate_swebench(
        &self,
        place: &Place<'_>,
        instance: &SwebenchEvaluator,
    ) -> Result<Verdict, Stop> {
        let patch = format!("{}/.polar-{}.patch", place.sandbox.home(), place.next_command());
        let write = place.sandbox.write_file(&patch, instance.test_patch.as_bytes(), false);
        if let Err(error) = self.unless_stopped(write).await? {
            return match error.retryable {
                true => Err(crate::maker::sandbox_failure(error.to_string())),
                false => Ok(Verdict::failed(format!("the test patch: {error}"))),
            };
        }
        let files = Files::of_patch(&instance.test_patch);
        let mut env: BTreeMap<String, String> = instance.env.clone();
        env.extend(
            [
                ("POLAR_BASE", instance.base_commit.clone().unwrap_or_default()),
                ("POLAR_CHANGED", lines(&files.changed)),
                ("POLAR_ADDED", lines(&files.added)),
                ("POLAR_PATCH", patch),
                ("POLAR_COMMAND", instance.test_command.clone()),
            ]
            .map(|(name, value)| (name.to_owned(), value)),
        );
        let workdir = instance.workdir.as_deref();
        let run = self.run_graded(place, RUN, workdir, &env, MOST_LOG).await?;
        match run.exit_code(place.seconds) {
            Ok(NOT_RESET) if self.evaluator.had(&base_of(instance)) => {
                return Ok(Verdict::zero(
                    "the tests cannot be taken back to the base commit any more, as they could \
                     before the agent ran; see grader.log",
                ));
            }
            // Of the repository as it was made, not of the work.
            Ok(NOT_RESET) => {
                return Ok(Verdict::failed(
                    "the tests could not be taken back to the base commit: the work folder must \
                     be a git repository that has it; see grader.log",
                ));
            }
            Ok(NOT_APPLIED) => {
                return Ok(Verdict::zero("the test patch does not apply; see grader.log"));
            }
            Ok(_) => {}
            Err(why) => return Ok(Verdict::failed(why)),
        }
        let log = match std::fs::read(&run.stdout) {
            Ok(log) => String::from_utf8_lossy(&log).into_owned(),
            Err(error) => return Ok(Verdict::failed(format!("the log is not readable: {error}"))),
        };
        Ok(judge(instance, &log))
    }
}

fn judge(instance: &SwebenchEvaluator, log: &str) -> Verdict {
    let told = log.split_once(START).and_then(|(_, rest)| rest.rsplit_once(END));
    let Some((told, _)) = told else {
        return Verdict::zero("the tests did not run to their end; see grader.log");
    };
    let parser = instance.log_parser.unwrap_or_else(|| SwebenchLogParser::of_repo(&instance.repo));
    let results = swebench::read(parser, told);
    let mut counts = TestCounts { told: count(results.len()), ..TestCounts::default() };
    let fixed = hold(&instance.fail_to_pass, &results, Outcome::is_fixed, &mut counts);
    let kept = hold(&instance.pass_to_pass, &results, Outcome::is_maintained, &mut counts);
    let verdict = match results.is_empty() {
        true => Verdict::zero("the log has no result of any test; see grader.log"),
        false => Verdict::of(f64::from(u8::from(fixed && kept))),
    };
    Verdict { tests: Some(counts), ..verdict }
}

/// Whether all tests of a list hold.
fn hold(
    names: &[String],
    results: &HashMap<String, Outcome>,
    holds: impl Fn(Outcome) -> bool,
    counts: &mut TestCounts,
) -> bool {
    let mut all = true;
    for name in names {
        counts.wanted += 1;
        match results.get(name) {
            Some(outcome) if holds(*outcome) => {
                counts.passed += 1;
                continue;
            }
            Some(_) if counts.failed.len() < MOST_NAMES => counts.failed.push(name.clone()),
            None if counts.missing.len() < MOST_NAMES => counts.missing.push(name.clone()),
            _ => {}
        }
        all = false;
    }
    all
}

/// Files that a patch touches.
#[derive(Debug, Default, PartialEq, Eq)]
struct Files<'a> {
    /// Those that are there before it.
    changed: Vec<&'a str>,
    /// Those that it makes.
    added: Vec<&'a str>,
}

impl<'a> Files<'a> {
    fn of_patch(patch: &'a str) -> Self {
        let mut files = Self::default();
        let mut lines = patch.lines().peekable();
        while let Some(line) = lines.next() {
            let Some(path) = line.strip_prefix("diff --git ").and_then(path_behind) else {
                continue;
            };
            let mut is_new = false;
            while let Some(head) = lines.next_if(|line| !line.starts_with("diff --git ")) {
                is_new |= head.starts_with("new file mode ");
                if head.starts_with("@@ ") {
                    break;
                }
            }
            match is_new {
                true => files.added.push(path),
                false => files.changed.push(path),
            }
        }
        files
    }
}

/// The path in `a/PATH b/PATH`.
fn path_behind(names: &str) -> Option<&str> {
    names.split_once(" b/").map(|(_, path)| path.trim_end())
}

fn lines(paths: &[&str]) -> String {
    paths.iter().map(|path| format!("{path}\n")).collect()
}

fn count(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn files_of_a_patch_are_told_apart() {
        let patch = "diff --git a/tests/a.py b/tests/a.py\nindex 1..2 100644\n--- a/tests/a.py\n\
            +++ b/tests/a.py\n@@ -1 +1 @@\n-x\n+new file mode 1\n\
            diff --git a/tests/b.py b/tests/b.py\nnew file mode 100644\n--- /dev/null\n\
            +++ b/tests/b.py\n@@ -0,0 +1 @@\n+y\n";
        let files = Files::of_patch(patch);
        assert_eq!(files, Files { changed: vec!["tests/a.py"], added: vec!["tests/b.py"] });
    }

    #[test]
    fn an_instance_is_resolved_by_the_benchmarks_rules() {
        let instance: SwebenchEvaluator = serde_json::from_value(json!({
            "instance_id": "a__b-1", "repo": "a/b", "test_patch": "diff --git a/t b/t",
            "fail_to_pass": ["t::f"], "pass_to_pass": ["t::p"], "test_command": "pytest",
        }))
        .unwrap();
        let log = |told: &str| format!("PASSED t::f\n{START}\n{told}\n{END}\n");
        for (told, reward) in [
            ("PASSED t::f\nPASSED t::p", 1.0),
            ("XFAIL t::f\nSKIPPED t::p", 1.0),
            ("SKIPPED t::f\nPASSED t::p", 0.0),
            ("PASSED t::f\nFAILED t::p - no", 0.0),
            ("PASSED t::f", 0.0),
            ("FAILED t::f - no\nPASSED t::p\nPASSED t::f", 1.0),
            ("", 0.0),
        ] {
            assert_eq!(judge(&instance, &log(told)).reward, Some(reward), "{told}");
        }
        assert_eq!(judge(&instance, "PASSED t::f\nPASSED t::p").reward, Some(0.0));
    }
}

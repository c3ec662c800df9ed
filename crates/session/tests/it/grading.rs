//! What crosses to the grader, and what does not.

use crate::ground::{Ground, artifact};
use polar_types::{ErrorClass, GradingSandbox, HackPattern, Outcome, SessionReport, Side, Slots};
use serde_json::{Value, json};

fn shell(command: &str) -> Value {
    json!({"name": "shell", "command": command})
}

/// Files of a small project, as steps.
fn project() -> Value {
    json!([
        {"type": "write_file", "path": "add.py", "content": "def add(a, b):\n    return a - b\n"},
        {"type": "write_file", "path": "keep.txt", "content": "kept\n"},
        {"type": "write_file", "path": "old/gone.txt", "content": "gone\n"},
        {"type": "write_file", "path": "mode.sh", "content": "exit 0\n"},
    ])
}

fn patterns(report: &SessionReport) -> Vec<HackPattern> {
    report.hack_labels.iter().map(|label| label.pattern).collect()
}

/// Every kind of change of the work folder is there for the grader, by whatever means it was
/// made; nothing of the rest of the agent's sandbox is.
#[tokio::test(flavor = "multi_thread")]
async fn the_work_and_nothing_else_reaches_a_grader() {
    let ground = Ground::new().await;
    let agent = r#"set -e
sed -i 's/-/+/' add.py
printf '\000\377' > binary; mv keep.txt moved.txt; rm -r old; chmod +x mode.sh
ln -s moved.txt link; mkdir -p new/deep; echo n > new/deep/file; echo skipped > skip.log
echo bad > "$HOME/planted"; mkdir __pycache__; echo x > __pycache__/add.cpython-311.pyc
(sleep 600 >/dev/null 2>&1 &)"#;
    let grader = r#"set -e
test ! -e __pycache__
python3 -c 'from add import add; assert add(1, 2) == 3'
printf '\000\377' | cmp - binary
test ! -e keep.txt; test "$(cat moved.txt)" = kept; test ! -e old; test -x mode.sh
test "$(readlink link)" = moved.txt; test -f new/deep/file
test ! -e skip.log; test ! -e "$HOME/planted"
test "$KEY" = secret; cat hidden.txt"#;
    let (report, folder) = ground
        .run(json!({
            "harness": shell(agent),
            "runtime": {"type": "local", "prepare": project()},
            "evaluator": {"type": "command", "command": grader, "env": {"KEY": "secret"}},
            "grading": {
                "exclude": ["*.log"],
                "setup": [{"type": "write_file", "path": "hidden.txt", "content": "the key\n"}],
            },
        }))
        .await;
    assert_eq!(report.outcome, Outcome::Completed, "{report:?}");
    assert_eq!(report.reward, Some(1.0), "{}", artifact(&folder, "grader.log"));
    let info = report.grade.as_ref().unwrap();
    assert_eq!((info.evaluator.as_str(), info.sandbox), ("command", GradingSandbox::Fresh));
    assert!(info.version.starts_with("command/1"), "{}", info.version);
    assert!(artifact(&folder, "grader.log").contains("the key"));
    assert!(!artifact(&folder, "workspace.diff").contains("the key"));
    ground.is_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_may_be_graded_in_its_own_sandbox() {
    let ground = Ground::new().await;
    let (report, _) = ground
        .run(json!({
            "harness": shell("echo mine > \"$HOME/state\""),
            "evaluator": {"type": "command", "command": "test -f \"$HOME/state\" -a -f key"},
            "grading": {
                "sandbox": "session",
                "setup": [{"type": "exec", "command": "echo k > key"}],
            },
        }))
        .await;
    assert_eq!(report.reward, Some(1.0), "{report:?}");
    assert_eq!(report.grade.unwrap().sandbox, GradingSandbox::Session);
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_are_named_cross_whole_and_within_the_limit() {
    // Set-up steps of the grader come after the agent.
    let ground =
        Ground::with_slots(Slots { prepare: 1, ready: 1, run: 1, grade: 1, warm: 0 }).await;
    let state = ground.dir.path().join("state");
    let path = state.display().to_string();
    let check = format!("test \"$(cat {path}/a/b)\" = data && test -x {path}/run");
    // A plain process shares the machine's folders; what the agent wrote goes before it is
    // graded, so that only what crossed is there.
    let agent = format!(
        "mkdir -p {path}/a; echo data > {path}/a/b; echo 'exit 0' > {path}/run; chmod +x {path}/run"
    );
    let (report, folder) = ground
        .run(json!({
            "harness": shell(&agent),
            "evaluator": {"type": "command", "command": check},
            "runtime": {"type": "local", "prepare": [
                {"type": "exec", "command": format!("rm -rf {path}")},
            ]},
            "grading": {"files": [path, "/no/such/file"], "max_mb": 1},
        }))
        .await;
    assert_eq!(report.reward, Some(1.0), "{}", artifact(&folder, "grader.log"));

    for agent in [
        format!("mkdir -p {path}; head -c 3000000 /dev/zero > {path}/big"),
        "head -c 3000000 /dev/zero > big".into(),
    ] {
        let (report, _) = ground
            .run(json!({
                "harness": shell(&agent),
                "evaluator": {"type": "command", "command": "true"},
                "grading": {"files": [path], "max_mb": 1},
            }))
            .await;
        assert_eq!((report.reward, &report.grade_error), (Some(0.0), &None), "{agent}");
        let note = report.grade_note.unwrap();
        assert!(note.contains("max_mb"), "{note}");
    }
}

/// Work that has no place among what the grader has is the agent's doing, however often it is
/// brought there.
#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_became_a_file_costs_the_reward_and_no_attempt() {
    let ground = Ground::new().await;
    let (report, _) = ground
        .run(json!({
            "harness": shell("rm -r tests; echo > tests"),
            "runtime": {"type": "local", "prepare": [
                {"type": "write_file", "path": "tests/test_a.py", "content": "assert True"},
            ]},
            "evaluator": {"type": "command", "command": "true"},
            "grading": {"exclude": ["tests/*"]},
        }))
        .await;
    assert_eq!((&report.outcome, report.reward), (&Outcome::Completed, Some(0.0)), "{report:?}");
    let note = report.grade_note.unwrap();
    assert!(note.contains("could not be unpacked") && note.contains("tests"), "{note}");
    ground.is_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tests_count_by_their_results() {
    let ground = Ground::new().await;
    // A program that tells TAP, as many do.
    let tap = r#"
import sys
from add import add
results = [("adds", add(1, 2) == 3), ("is neutral to 0", add(5, 0) == 5)]
print("1..2")
for number, (name, good) in enumerate(results, 1):
    print("ok" if good else "not ok", number, "-", name)
sys.exit(not all(good for _, good in results))
"#;
    let task = |agent: &str, tests: Value| {
        let mut evaluator =
            json!({"type": "tests", "command": "python3 check.py", "format": "tap"});
        for (field, value) in tests.as_object().unwrap() {
            evaluator[field] = value.clone();
        }
        json!({
            "harness": shell(agent),
            "runtime": {"type": "local", "prepare": project()},
            "evaluator": evaluator,
            "grading": {
                "setup": [{"type": "write_file", "path": "check.py", "content": tap}],
            },
        })
    };
    let fix = "sed -i 's/-/+/' add.py";
    let named = json!({"fail_to_pass": ["adds"], "pass_to_pass": ["is neutral to 0"]});
    for (agent, tests, reward) in [
        (fix, json!({}), 1.0),
        ("true", json!({}), 0.0),
        ("true", json!({"reward": "fraction"}), 0.5),
        (fix, named.clone(), 1.0),
        ("true", named.clone(), 0.0),
        // Neither its own tests nor a report that it brings say anything.
        ("echo 'print(\"ok 1 - adds\")' > check.py", named.clone(), 0.0),
        (
            "printf 'ok 1 - adds\\nok 2 - is neutral to 0\\n' > results.tap",
            json!({"command": "true", "report": "results.tap"}),
            0.0,
        ),
        (fix, json!({"command": "python3 check.py > r.tap", "report": "r.tap"}), 1.0),
        ("echo 'import os; os._exit(0)' > add.py", named.clone(), 0.0),
    ] {
        let (report, folder) = ground.run(task(agent, tests.clone())).await;
        let log = artifact(&folder, "grader.log");
        assert_eq!(report.reward, Some(reward), "{agent} {tests}: {report:?} {log}");
    }
    let (report, _) = ground.run(task("true", named)).await;
    let counts = report.grade.unwrap().tests.unwrap();
    assert_eq!((counts.wanted, counts.passed, counts.failed), (2, 1, vec!["adds".to_owned()]));
}

#[tokio::test(flavor = "multi_thread")]
async fn evaluators_are_made_of_others() {
    let ground = Ground::new().await;
    let number = |number: f64| json!({"type": "command", "command": format!("echo {number}"), "reward": "stdout"});
    let broken = json!({"type": "command", "command": "echo none", "reward": "stdout"});
    let weighted =
        |weight: f64, evaluator: Value| json!({"weight": weight, "evaluator": evaluator});
    for (evaluator, reward) in [
        (
            json!({"type": "weighted_sum", "of": [weighted(0.75, number(1.0)), weighted(0.5, number(-0.5))]}),
            Some(0.5),
        ),
        (
            json!({"type": "weighted_sum", "of": [weighted(1.0, number(1.0)), weighted(0.5, broken.clone())]}),
            None,
        ),
        (json!({"type": "all", "of": [number(1.0), number(0.25)]}), Some(0.25)),
        (json!({"type": "all", "of": [number(1.0), broken]}), None),
        (json!({"type": "first", "of": [broken, number(0.5), number(1.0)]}), Some(0.5)),
        (json!({"type": "first", "of": [broken]}), None),
        (json!({"type": "all", "of": [{"type": "first", "of": [broken, number(1.0)]}]}), Some(1.0)),
    ] {
        let (report, _) =
            ground.run(json!({"harness": shell("true"), "evaluator": evaluator})).await;
        assert_eq!(report.reward, reward, "{evaluator}: {report:?}");
        assert_eq!(report.grade_error.is_some(), reward.is_none(), "{evaluator}");
        let info = report.grade.unwrap();
        assert!(!info.parts.is_empty());
        let kind = if info.parts[0].evaluator == "first" { "first" } else { "command" };
        assert_eq!(info.parts[0].evaluator, kind);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn marks_of_hacks_are_told_and_zero_a_reward_only_when_asked() {
    let ground = Ground::new().await;
    let task = |on_hack: &str| {
        json!({
            "harness": shell("echo > conftest.py; echo 1 > reward.txt; echo pass > tests/test_a.py"),
            "runtime": {"type": "local", "prepare": [
                {"type": "write_file", "path": "tests/test_a.py", "content": "assert False\n"},
            ]},
            "evaluator": {"type": "command", "command": "true"},
            "grading": {"on_hack": on_hack},
        })
    };
    let (report, _) = ground.run(task("label")).await;
    assert_eq!((report.reward, &report.grade_note), (Some(1.0), &None));
    let expected =
        [HackPattern::ConftestPlanted, HackPattern::RewardFileWritten, HackPattern::TestsEdited];
    assert_eq!(patterns(&report), expected);
    let (report, _) = ground.run(task("zero")).await;
    assert_eq!((report.reward, patterns(&report).len()), (Some(0.0), 3));
    assert!(report.grade_note.unwrap().contains("conftest.py"));
}

/// The commit that fixes it, a tag on it, a stash and the reflog are what agents look for.
#[tokio::test(flavor = "multi_thread")]
async fn git_history_beyond_the_base_commit_is_gone() {
    let ground = Ground::new().await;
    let make = r#"set -e
git() { command git -c user.name=a -c user.email=a@example.org "$@"; }
git init -q -b main; echo base > f; git add f; git commit -qm base; git tag v1
echo "the fix" > f; git commit -qam fix; git tag v2; git branch later
git clone -q --bare . origin.git; git remote add origin "$PWD/origin.git"; git fetch -q origin
git reset -q --hard v1; echo "stashed fix" > f; git stash -q"#;
    let look = r#"git log --all --format=%s; git tag; git branch -a; git remote; git reflog --all
git stash list; ls .git
git rev-list --all --objects | wc -l
for object in $(git cat-file --batch-all-objects --batch-check='%(objectname)'); do
    git cat-file -p $object
done"#;
    let (report, folder) = ground
        .run(json!({
            "harness": shell(look),
            "runtime": {"type": "local", "prepare": [
                {"type": "exec", "command": make},
                {"type": "scrub_git"},
                {"type": "exec", "command": "rm -rf origin.git && git status --porcelain"},
            ]},
            "evaluator": "none",
        }))
        .await;
    assert_eq!(report.outcome, Outcome::Completed, "{report:?}");
    let seen = artifact(&folder, "stdout.log");
    assert!(seen.starts_with("base\nv1\n* main\n"), "{seen}");
    for trace in ["fix", "v2", "later", "origin", "stash", "ORIG_HEAD"] {
        assert!(!seen.contains(trace), "{trace} in {seen}");
    }
    let (report, _) = ground
        .run(json!({
            "harness": shell("true"),
            "runtime": {"type": "local", "prepare": [{"type": "scrub_git"}]},
        }))
        .await;
    let Outcome::Failed { message, .. } = report.outcome else { panic!("{report:?}") };
    assert!(message.contains("no git repository"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_for_the_grader_that_fails_on_the_work_gives_0() {
    let ground = Ground::new().await;
    let (report, _) = ground
        .run(json!({
            "harness": shell("echo 'in the way' > tests"),
            "evaluator": {"type": "command", "command": "true"},
            "grading": {
                "setup": [{"type": "write_file", "path": "tests/test_a.py", "content": "pass"}],
            },
        }))
        .await;
    assert_eq!((report.reward, &report.grade_error), (Some(0.0), &None), "{report:?}");
    assert!(report.grade_note.unwrap().contains("grading.setup"));
}

/// Wherever it is graded: a test that a link swallows would be one that nothing fails.
#[tokio::test(flavor = "multi_thread")]
async fn promise_9_what_an_agent_leaves_in_the_place_of_a_hidden_test_is_replaced() {
    let ground = Ground::new().await;
    for agent in ["ln -sf /dev/null tests/check.sh", "rm tests/check.sh; mkfifo tests/check.sh"] {
        for sandbox in ["fresh", "session"] {
            let (report, _) = ground
                .run(json!({
                    "harness": shell(agent),
                    "runtime": {"type": "local", "prepare": [
                        {"type": "write_file", "path": "tests/check.sh", "content": "exit 0"},
                    ]},
                    "evaluator": {"type": "command", "command": "sh tests/check.sh"},
                    "grading": {"sandbox": sandbox, "setup": [
                        {"type": "write_file", "path": "tests/check.sh", "content": "exit 1"},
                    ]},
                }))
                .await;
            assert_eq!(report.outcome, Outcome::Completed, "{agent}, {sandbox}: {report:?}");
            assert_eq!(report.reward, Some(0.0), "{agent}, {sandbox}: {report:?}");
        }
    }
}

/// The agent's sandbox was made all right, so that this says nothing of its work.
#[tokio::test(flavor = "multi_thread")]
async fn a_grader_that_cannot_be_made_fails_the_attempt() {
    let ground = Ground::new().await;
    let once = ground.dir.path().join("once").display().to_string();
    let step = format!("test ! -e {once} && touch {once}");
    let (report, _) = ground
        .run(json!({
            "runtime": {"type": "local", "prepare": [
                {"type": "exec", "command": step},
            ]},
            "harness": shell("true"),
            "evaluator": {"type": "command", "command": "true"},
        }))
        .await;
    let Outcome::Failed { side, class, message } = &report.outcome else { panic!("{report:?}") };
    assert_eq!((*side, *class), (Side::Sandbox, ErrorClass::Invalid), "{message}");
    assert!(report.outcome.is_retryable());
    assert_eq!(report.reward, None);
}

//! Sessions pass their stages, and end well whatever happens in them.

use crate::ground::{Ground, appears, artifact, within};
use polar_session::{Control, Ended};
use polar_types::{ErrorClass, Outcome, SessionReport, Side, Slots, Stage, Trajectory};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

fn shell(command: &str) -> Value {
    json!({"name": "shell", "command": command})
}

fn failure(report: &SessionReport) -> (Side, ErrorClass, &str) {
    match &report.outcome {
        Outcome::Failed { side, class, message } => (*side, *class, message),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn promise_1_a_session_runs_is_graded_and_every_token_is_accounted_for() {
    let ground = Ground::new().await;
    let (report, folder) = ground.run(json!({})).await;
    assert_eq!(report.outcome, Outcome::Completed, "{report:?}");
    assert_eq!(report.reward, Some(1.0));
    assert_eq!((report.exit_code, report.calls, report.traces), (Some(0), 3, 1));
    assert!(report.tokens.is_conserved());
    assert!(report.tokens.trained > 0);
    assert_eq!(report.tokens.trained, report.tokens.sampled);

    let trajectory: Trajectory =
        serde_json::from_str(&artifact(&folder, "trajectory.json")).unwrap();
    assert_eq!(trajectory.reward, Some(1.0));
    assert_eq!(trajectory.traces[0].calls.len(), 3);
    let calls: Value = serde_json::from_str(&artifact(&folder, "calls.json")).unwrap();
    assert_eq!(calls.as_array().unwrap().len(), 3);
    assert_eq!(artifact(&folder, "stdout.log").trim(), "The file hello.txt holds hello.");
    assert!(artifact(&folder, "workspace.diff").contains("+hello"));
    assert_eq!(folder.report(), Some(report.clone()), "it outlives a restart");

    let names: Vec<_> = report.artifacts.iter().map(|a| a.name.as_str()).collect();
    assert_eq!(names, polar_session::ARTIFACTS);
    for kept in &report.artifacts {
        let bytes = std::fs::read(folder.artifact(&kept.name)).unwrap();
        assert_eq!(kept.size, bytes.len() as u64);
        let digest: String = Sha256::digest(&bytes).iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(kept.sha256, digest);
    }
    ground.is_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn evaluators_give_a_reward_or_say_why_not() {
    let ground = Ground::new().await;
    let table = [
        (json!("none"), None, None),
        (json!({"type": "command", "command": "true"}), Some(1.0), None),
        (json!({"type": "command", "command": "exit 3"}), Some(0.0), None),
        (
            json!({"type": "command", "command": "echo 1; echo ' 0.25 '; echo done", "reward": "stdout"}),
            Some(0.25),
            None,
        ),
        (
            json!({"type": "command", "command": "echo nan; echo inf; echo no", "reward": "stdout"}),
            None,
            Some("no line that is a finite number"),
        ),
        (
            json!({"type": "command", "command": "echo 0.5; yes | head -c 300000", "reward": "stdout"}),
            None,
            Some("within the last 256 KiB"),
        ),
        // More than is kept of an output.
        (
            json!({"type": "command", "command": "yes | head -c 3000000; echo 0.75", "reward": "stdout"}),
            Some(0.75),
            None,
        ),
        // The end that is looked at begins behind the sign.
        (
            json!({"type": "command", "command": "echo -0.5; yes | head -c 262140", "reward": "stdout"}),
            None,
            Some("within the last 256 KiB"),
        ),
        (
            json!({"type": "command", "command": "echo 1; exit 1", "reward": "stdout"}),
            None,
            Some("exit code 1"),
        ),
        (
            json!({"type": "command", "command": "test \"$ANSWER\" = 42", "env": {"ANSWER": "42"}}),
            Some(1.0),
            None,
        ),
    ];
    for (evaluator, reward, error) in table {
        let (report, _) =
            ground.run(json!({"harness": shell("true"), "evaluator": evaluator})).await;
        assert_eq!(report.outcome, Outcome::Completed, "a grader changes no outcome");
        assert_eq!(report.reward, reward, "{evaluator}: {report:?}");
        let said = report.grade_error.as_deref().unwrap_or_default();
        assert_eq!(report.grade_error.is_some(), error.is_some(), "{evaluator}: {said}");
        assert!(said.contains(error.unwrap_or_default()), "{evaluator}: {said}");
    }
}

/// Whatever the agent does to its evaluator, it gets no better than 0.
#[tokio::test(flavor = "multi_thread")]
async fn an_evaluator_that_the_agent_breaks_gives_0_and_says_so() {
    let ground = Ground::new().await;
    let table = [
        ("rm -f run_tests.sh", "./run_tests.sh", "although `./run_tests.sh` was there"),
        ("chmod -x run_tests.sh", "./run_tests.sh", "exit code 126"),
        ("rm -rf ../work", "./run_tests.sh", "could not be run"),
        ("rm -f run_tests.sh", "cd . && ./run_tests.sh", "exit code 127"),
        ("true", "./made_by_the_agent", "nor was `./made_by_the_agent` there"),
        ("true", "env no-such-program", "could not be run"),
        ("true", "kill -KILL $$", "not for want of memory"),
    ];
    let script = json!({
        "type": "write_file", "path": "run_tests.sh", "content": "#!/bin/sh\nexit 1\n",
        "executable": true,
    });
    for ((agent, command, words), sandbox) in
        table.into_iter().flat_map(|case| ["session", "fresh"].map(|sandbox| (case, sandbox)))
    {
        // Where the work folder itself is gone there is nothing to carry to a grader.
        let gone = agent.contains("../work") && sandbox == "fresh";
        let words = if gone { "compare work folder" } else { words };
        let (report, _) = ground
            .run(json!({
                "harness": shell(agent),
                "runtime": {"type": "local", "prepare": [script]},
                "evaluator": {"type": "command", "command": command},
                "grading": {"sandbox": sandbox},
            }))
            .await;
        assert_eq!(report.outcome, Outcome::Completed, "{agent}: {report:?}");
        assert_eq!((report.reward, &report.grade_error), (Some(0.0), &None), "{agent}, {command}");
        let note = report.grade_note.unwrap_or_default();
        assert!(note.contains(words), "{agent}, {command}: {note}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_whose_evaluator_cannot_run_is_refused_before_the_agent_runs() {
    let ground = Ground::new().await;
    let bin = ground.dir.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    std::os::unix::fs::symlink("/bin/sh", bin.join("sh")).unwrap();
    let table = [
        (json!("no-such-program --all"), json!({}), "no-such-program"),
        (json!("CI=1 no-such-program && true"), json!({}), "runtime.prepare"),
        (json!("./agent.py"), json!({}), "executable: true"),
        (json!("python3 -c pass"), json!({"PATH": bin}), "not there"),
        // One that runs tests and is hardly installed where these run.
        (json!("python3 -m behave --no-capture"), json!({}), "no module `behave`"),
    ];
    for (command, env, words) in table {
        let evaluator = json!({"type": "command", "command": command, "env": env});
        let (report, folder) = ground.run(json!({"evaluator": evaluator})).await;
        let (side, class, message) = failure(&report);
        assert_eq!((side, class), (Side::Grader, ErrorClass::Invalid), "{command}: {message}");
        assert!(message.contains("evaluator.command"), "{message}");
        assert!(message.contains(words), "{message}");
        assert!(!report.outcome.is_retryable());
        assert!(!folder.artifact("stdout.log").exists(), "the harness never ran");
    }
    ground.is_free().await;
}

/// That is no verdict of the grader's.
#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_fails_while_grading_fails_the_attempt() {
    let ground = Ground::new().await;
    // Where the node keeps the grader's output. Of a plain process nothing is out of reach.
    let logs = "../../../logs";
    let agent = format!("python3 agent.py; rm -r {logs} && touch {logs}");
    let (report, _) =
        ground.run(json!({"harness": shell(&agent), "grading": {"sandbox": "session"}})).await;
    let (side, class, message) = failure(&report);
    assert_eq!((side, class), (Side::Sandbox, ErrorClass::Unavailable), "{message}");
    assert!(message.contains("evaluating: keep output"), "{message}");
    assert!(report.outcome.is_retryable());
    assert_eq!((report.reward, report.calls), (None, 3), "what was sampled is kept");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grader_out_of_time_costs_the_reward_alone() {
    let ground = Ground::new().await;
    let (report, folder) = ground
        .run(json!({
            "evaluator": {"type": "command", "command": "echo started; sleep 600"},
            "budgets": {"grade_seconds": 1.0},
        }))
        .await;
    assert_eq!(report.outcome, Outcome::Completed);
    assert_eq!(report.reward, None);
    assert!(report.grade_error.unwrap().contains("budgets.grade_seconds"));
    assert!(report.tokens.trained > 0);
    assert!(artifact(&folder, "grader.log").contains("started"));
    ground.is_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn promise_6_a_session_out_of_time_keeps_its_data_and_is_graded() {
    let ground = Ground::new().await;
    let (report, folder) = ground
        .run(json!({
            "harness": shell("python3 agent.py; (sleep 600 & echo $! > pid; wait)"),
            "budgets": {"run_seconds": 5.0},
            "grading": {"sandbox": "session"},
            "evaluator": {
                "type": "command",
                // Dead, or a zombie that nobody has waited for yet.
                "command": "grep -q hello hello.txt && \
                    case $(cut -d ' ' -f 3 /proc/$(cat pid)/stat) in ''|Z) ;; *) exit 1;; esac",
            },
        }))
        .await;
    assert_eq!(report.outcome, Outcome::TimedOut, "{report:?}");
    assert_eq!(report.reward, Some(1.0), "graded, with nothing of the harness alive");
    assert_eq!((report.calls, report.traces, report.exit_code), (3, 1, None));
    assert_eq!(artifact(&folder, "stdout.log").trim(), "The file hello.txt holds hello.");
    ground.is_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn promise_9_the_grader_knows_nothing_of_the_proxy() {
    let ground = Ground::new().await;
    let (report, folder) = ground
        .run(json!({
            "harness": shell("env > harness.env; python3 agent.py"),
            "evaluator": {"type": "command", "command": "env"},
        }))
        .await;
    assert_eq!(report.outcome, Outcome::Completed, "{report:?}");
    let diff = artifact(&folder, "workspace.diff");
    let secret = diff.lines().find_map(|line| line.strip_prefix("+POLAR_API_KEY=")).unwrap();
    assert!(secret.len() > 32);
    let grader = artifact(&folder, "grader.log");
    assert!(grader.contains("HOME="));
    for leak in [secret, "OPENAI_", "ANTHROPIC_", "POLAR_API", "POLAR_BASE"] {
        assert!(!grader.contains(leak), "{leak} in {grader}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_harness_is_graded_all_the_same() {
    let ground = Ground::new().await;
    let (report, _) =
        ground.run(json!({"harness": shell("python3 agent.py; echo it broke >&2; exit 3")})).await;
    let (side, _, message) = failure(&report);
    assert_eq!(side, Side::Harness);
    assert!(message.contains("exit code 3") && message.contains("it broke"), "{message}");
    assert_eq!((report.exit_code, report.reward), (Some(3), Some(1.0)));
    assert!(!report.outcome.is_retryable());

    let (report, _) = ground.run(json!({"harness": shell("no-such-agent")})).await;
    let message = failure(&report).2;
    assert!(message.contains("program was not found"), "{message}");
    assert!(message.contains("shows the machine's /usr"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_code_0_is_not_believed_when_the_adapter_knows_better() {
    let ground = Ground::new().await;
    let adapter = |command: &str| {
        json!({
            "name": "mine", "version": "1", "provider": "openai_chat", "model": "m",
            "command": ["sh", "-c", command],
            "stdin": "{{ instruction }}",
            "env_vars": {
                "OPENAI_BASE_URL": "{{ base_url }}/v1",
                "OPENAI_API_KEY": "{{ api_key }}",
                "OPENAI_MODEL": "{{ model }}",
            },
            "success": {"failures": [
                {"stream": "stderr", "pattern": "^fatal: .*", "meaning": "it gave up"},
            ]},
        })
    };
    let harness = |command: &str| json!({"name": "mine", "adapter": adapter(command)});

    let (report, _) = ground.run(json!({"harness": harness("true")})).await;
    assert!(failure(&report).2.contains("without a single model call"), "{report:?}");

    let said = harness("python3 agent.py; echo fatal: no more >&2");
    let (report, _) = ground.run(json!({"harness": said})).await;
    assert!(failure(&report).2.contains("it gave up: fatal: no more"), "{report:?}");

    let (report, _) = ground.run(json!({"harness": harness("python3 agent.py")})).await;
    assert_eq!(report.outcome, Outcome::Completed, "{report:?}");

    // The engine fails the last call, and the harness says that all is well.
    ground.simulator.set_policy(
        polar_simulator::Policy::from_yaml(
            "name: down\nrules: [{name: all, fault: status=503}]\ndefault: {text: x}\n",
        )
        .unwrap(),
    );
    let (report, _) = ground.run(json!({"harness": harness("python3 agent.py; true")})).await;
    let (side, class, message) = failure(&report);
    assert_eq!((side, class), (Side::Engine, ErrorClass::Unavailable), "{message}");
    assert!(report.outcome.is_retryable());

    // What was done before is not the work of an agent that had its engine.
    ground.simulator.set_policy(
        polar_simulator::Policy::from_yaml(
            "name: later\nrules: [{name: all, when: {any_message: later}, fault: status=503}]\n\
             default: {text: x}\n",
        )
        .unwrap(),
    );
    for evaluator in ["true", "false"] {
        let lost = harness("python3 agent.py; echo later | python3 agent.py; true");
        let evaluator = json!({"type": "command", "command": evaluator});
        let (report, folder) = ground.run(json!({"harness": lost, "evaluator": evaluator})).await;
        assert_eq!(failure(&report).0, Side::Engine, "{report:?}");
        assert_eq!((report.traces, report.reward), (1, None), "{report:?}");
        assert!(report.grade_error.unwrap().starts_with("engine_loss: "));
        let kept: Value = serde_json::from_str(&artifact(&folder, "trajectory.json")).unwrap();
        assert_eq!(kept["traces"][0]["reward"], Value::Null, "{kept}");
        assert!(kept["traces"][0]["response_ids"].is_array(), "{kept}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn preparing_fails_with_the_step_and_its_output() {
    let ground = Ground::new().await;
    let runtime = |step: Value| json!({"type": "local", "prepare": [step]});
    let table = [
        (
            json!({"runtime": runtime(json!({"type": "exec", "command": "echo no luck >&2; exit 4"}))}),
            Side::Sandbox,
            ErrorClass::Invalid,
            "exit code 4: no luck",
        ),
        (
            json!({"runtime": runtime(json!({"type": "exec", "command": "no-such-program"}))}),
            Side::Sandbox,
            ErrorClass::Invalid,
            "shows the machine's /usr",
        ),
        (
            json!({"runtime": runtime(json!({
                "type": "exec",
                "command": "echo 'curl: (6) Could not resolve host: example.org' >&2; exit 6",
            }))}),
            Side::Sandbox,
            ErrorClass::Invalid,
            "runtime.network: open",
        ),
        (
            json!({
                "runtime": runtime(json!({"type": "exec", "command": "sleep 600"})),
                "budgets": {"prepare_seconds": 1.0},
            }),
            Side::Sandbox,
            ErrorClass::Timeout,
            "budgets.prepare_seconds",
        ),
        (
            json!({"runtime": runtime(json!({
                "type": "write_file", "path": "x", "content": "!", "encoding": "base64",
            }))}),
            Side::Sandbox,
            ErrorClass::Unavailable,
            "not base64",
        ),
        (
            json!({"runtime": {"type": "docker", "image": "none"}}),
            Side::Sandbox,
            ErrorClass::Unavailable,
            "no docker runtime",
        ),
        (
            json!({"harness": {"name": "shell", "command": "true", "settings": {"colour": 1}}}),
            Side::Harness,
            ErrorClass::Invalid,
            "colour",
        ),
        (
            json!({"harness": {"name": "x", "adapter": {"name": "x"}}}),
            Side::Harness,
            ErrorClass::Invalid,
            "version",
        ),
    ];
    for (changes, side, class, words) in table {
        let (report, folder) = ground.run(changes.clone()).await;
        let (found_side, found_class, message) = failure(&report);
        assert_eq!((found_side, found_class), (side, class), "{changes}: {message}");
        assert!(message.contains(words), "{changes}: {message}");
        assert_eq!((report.calls, report.reward), (0, None));
        assert!(!folder.artifact("stdout.log").exists(), "the harness never ran");
    }
    ground.is_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn promise_7_cancelling_at_any_point_frees_exactly_what_is_held() {
    let ground =
        Ground::with_slots(Slots { prepare: 1, ready: 1, run: 1, grade: 1, warm: 1 }).await;
    let slow = |at: &str| match at {
        "prepare" => json!({
            "runtime": {"type": "local", "prepare": [{"type": "exec", "command": "sleep 600"}]},
        }),
        "run" => json!({"harness": shell("sleep 600")}),
        _ => json!({"evaluator": {"type": "command", "command": "sleep 600"}}),
    };
    let points = [
        ("prepare", Stage::Prepare, "set-up"),
        ("run", Stage::Run, "harness"),
        ("grade", Stage::Grade, "evaluator"),
    ];
    for order in [Control::Cancel, Control::Abandon] {
        for (at, stage, words) in points {
            let mut session = ground.start(ground.lease(slow(at)));
            session.reaches(stage, words).await;
            session.control.send_replace(order);
            ended_by(order, session.end().await, if at == "grade" { 3 } else { 0 });
            ground.is_free().await;
        }
    }
}

/// A second session that waits for the place the first one holds.
#[tokio::test(flavor = "multi_thread")]
async fn promise_7_cancelling_a_waiting_session_frees_its_place() {
    let ground =
        Ground::with_slots(Slots { prepare: 1, ready: 1, run: 1, grade: 1, warm: 1 }).await;
    let mut runs = ground.start(ground.lease(json!({"harness": shell("sleep 600")})));
    runs.reaches(Stage::Run, "harness").await;
    for order in [Control::Cancel, Control::Abandon] {
        let mut ready = ground.start(ground.lease(json!({})));
        ready.reaches(Stage::Ready, "a run slot").await;
        // The ready buffer is full, so this one keeps the preparation slot …
        let mut buffered = ground.start(ground.lease(json!({})));
        buffered.reaches(Stage::Ready, "a run slot").await;
        // … and that one has none.
        let mut waits = ground.start(ground.lease(json!({})));
        waits.reaches(Stage::Prepare, "a preparation slot").await;
        assert_eq!(ground.runner.places_taken(), 3);
        for session in [waits, buffered, ready] {
            session.control.send_replace(order);
            ended_by(order, session.end().await, 0);
        }
        assert_eq!(ground.runner.places_taken(), 1);
    }
    runs.control.send_replace(Control::Abandon);
    assert_eq!(runs.end().await, Ended::Abandoned);
    ground.is_free().await;
}

fn ended_by(order: Control, ended: Ended, calls: u32) {
    match (order, ended) {
        (Control::Abandon, Ended::Abandoned) => {}
        (Control::Cancel, Ended::Reported(report)) => {
            assert_eq!(report.outcome, Outcome::Cancelled, "{report:?}");
            assert_eq!((report.calls, report.reward), (calls, None));
        }
        (order, ended) => panic!("{order:?} gave {ended:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn promise_8_preparation_does_not_run_ahead_of_the_engine() {
    let ground =
        Ground::with_slots(Slots { prepare: 1, ready: 1, run: 1, grade: 1, warm: 1 }).await;
    let changes = || json!({"harness": shell("sleep 600")});
    let sessions: Vec<_> = (0..4).map(|_| ground.start(ground.lease(changes()))).collect();
    let count = |stage| {
        sessions.iter().filter(|session| session.progress.borrow().stage == Some(stage)).count()
    };
    // One runs, one is in the buffer, one is prepared and keeps its slot, one waits.
    within(async {
        while [Stage::Run, Stage::Ready, Stage::Prepare].map(count) != [1, 2, 1] {
            assert!(count(Stage::Run) <= 1, "there is one run slot");
            tokio::task::yield_now().await;
        }
    })
    .await;
    for session in &sessions {
        session.control.send_replace(Control::Abandon);
    }
    for session in sessions {
        assert_eq!(session.end().await, Ended::Abandoned);
    }
    ground.is_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_in_one_session_touches_no_other() {
    let ground =
        Ground::with_slots(Slots { prepare: 4, ready: 4, run: 4, grade: 4, warm: 4 }).await;
    let good = ground.start(ground.lease(json!({})));
    let bad = [
        json!({"harness": shell("kill -9 $$")}),
        json!({"harness": shell("rm -rf \"$HOME\" .; exit 1")}),
        json!({"runtime": {"type": "local", "prepare": [{"type": "exec", "command": "exit 1"}]}}),
    ];
    let bad: Vec<_> = bad.into_iter().map(|changes| ground.start(ground.lease(changes))).collect();
    for session in bad {
        assert!(matches!(session.report().await.outcome, Outcome::Failed { .. }));
    }
    let report = good.report().await;
    assert_eq!((report.outcome, report.reward), (Outcome::Completed, Some(1.0)));
    ground.is_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn promise_8_output_is_kept_up_to_its_limit() {
    let ground = Ground::new().await;
    let (report, folder) =
        ground.run(json!({"harness": shell("yes too much | head -c 8000000")})).await;
    assert_eq!(report.outcome, Outcome::Completed);
    let kept = std::fs::metadata(folder.artifact("stdout.log")).unwrap().len();
    assert!(kept < 2 << 20, "{kept} bytes of 8 MB are kept");
}

#[tokio::test(flavor = "multi_thread")]
async fn promise_4_what_a_dead_node_recorded_is_salvaged() {
    let ground = Ground::new().await;
    let lease = ground.lease(json!({
        "harness": shell("python3 agent.py; touch done; sleep 600"),
    }));
    let mut session = ground.start(lease.clone());
    session.reaches(Stage::Run, "harness").await;
    appears(&session.folder.path().join("sandbox/sandbox/work/done")).await;
    assert!(session.progress.borrow().waiting_for().contains("3 calls"));
    // As after a kill: the journal has no end, the report is missing.
    let (folder, found) =
        polar_session::AttemptFolder::left_behind(&ground.sessions()).unwrap().remove(0);
    assert_eq!(found, lease);
    let node = "n".parse().unwrap();
    let report = polar_session::salvage(&folder, found, node, "the node restarted").await;
    assert_eq!((report.calls, report.traces, report.epoch), (3, 1, lease.epoch));
    assert!(report.tokens.trained > 0);
    assert_eq!(failure(&report), (Side::Polar, ErrorClass::Unavailable, "the node restarted"));
    assert!(report.artifacts.iter().any(|artifact| artifact.name == "journal"));
    session.control.send_replace(Control::Abandon);
    assert_eq!(session.end().await, Ended::Abandoned);
}

#[test]
fn promise_4_a_folder_whose_lease_cannot_be_read_is_kept() {
    let sessions = tempfile::tempdir().unwrap();
    for (name, lease) in [("of-another-version", Some("{\"era\": 2}")), ("never-started", None)] {
        let folder = sessions.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        if let Some(lease) = lease {
            std::fs::write(folder.join("lease.json"), lease).unwrap();
        }
    }
    let found = polar_session::AttemptFolder::left_behind(sessions.path()).unwrap();
    assert!(found.is_empty());
    assert!(sessions.path().join("of-another-version").exists());
    assert!(!sessions.path().join("never-started").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_skill_that_is_not_in_the_sandbox_fails_the_session_with_its_path() {
    let ground = Ground::new().await;
    let adapter = json!({
        "name": "mine", "version": "1", "provider": "any", "model": "m", "command": ["true"],
        "skills_folder": "{{ home }}/skills",
    });
    let skills = json!([{"name": "stamping", "path": "/tmp/no-such-skill"}]);
    let (report, _) = ground
        .run(json!({"harness": {"name": "mine", "adapter": adapter, "skills": skills}}))
        .await;
    let Outcome::Failed { message, .. } = &report.outcome else { panic!("{report:?}") };
    assert!(message.contains("/tmp/no-such-skill") && message.contains("SKILL.md"), "{message}");
    ground.is_free().await;
}

//! How sessions end whose agent did not come to a good end: each says so in its report and in its
//! trajectory, and is told from the others.

use crate::ground::{Ground, artifact};
use polar_session::{AttemptFolder, Control};
use polar_simulator::SimulatorConfig;
use polar_types::{EndReason, Outcome, SessionReport, Side, Stage, Trajectory};
use serde_json::json;

/// What is the same of all ends.
fn says_so(report: &SessionReport, folder: &AttemptFolder) -> String {
    let kept: Trajectory = serde_json::from_str(&artifact(folder, "trajectory.json")).unwrap();
    assert_eq!(kept.reason, report.reason);
    assert_eq!(kept.reason_detail, report.reason_detail);
    assert_eq!(kept.reward, report.reward);
    report.reason_detail.clone().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_never_started_is_a_failure_without_a_reward() {
    let ground = Ground::new().await;
    let table = [
        (
            "/no/such/agent",
            EndReason::FailedToStart,
            "was not found: shell ended with exit code 127",
        ),
        ("no-such-agent --now", EndReason::FailedToStart, "no-such-agent"),
        ("exec ./agent.py", EndReason::FailedToStart, "could not be executed"),
        ("exit 3", EndReason::HarnessCrash, "exit code 3 before its first model call"),
        ("echo no key >&2; exit 1", EndReason::HarnessCrash, "saying: no key"),
        ("kill -KILL $$", EndReason::HarnessCrash, "SIGKILL"),
        // The sandbox's own words are believed before a guess.
        (
            "echo 'polar: ended, because of storage' >&2; kill -KILL $$",
            EndReason::HarnessCrash,
            "shell was ended (exit code 137) before its first model call, saying: polar: ended",
        ),
        ("kill -XFSZ $$", EndReason::HarnessCrash, "runtime.storage_mb"),
        ("kill -SEGV $$", EndReason::HarnessCrash, "SIGSEGV"),
        ("kill -USR1 $$", EndReason::HarnessCrash, "signal 10"),
    ];
    for (command, reason, words) in table {
        let (report, folder) = ground
            .run(json!({
                "harness": {"name": "shell", "command": command},
                // What is graded is what the agent found.
                "evaluator": {"type": "command", "command": "true"},
            }))
            .await;
        let Outcome::Failed { side: Side::Harness, .. } = report.outcome else {
            panic!("{command}: {report:?}")
        };
        assert_eq!(report.reason, Some(reason), "{command}: {report:?}");
        assert_eq!((report.reward, report.calls), (None, 0), "{command}: {report:?}");
        let said = says_so(&report, &folder);
        assert!(said.contains(words), "{command}: {said}");
        let ungraded = report.grade_error.unwrap();
        assert!(ungraded.contains("made no call"), "{command}: {ungraded}");
        assert!(!report.outcome.is_retryable());
    }
}

/// What it did is data, and is graded; that it crashed is told beside.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_crashed_after_its_calls_keeps_its_data_and_its_reward() {
    let ground = Ground::new().await;
    let table = [
        ("exit 3", "ended with exit code 3"),
        ("no-such-program", "ended with exit code 127"),
        ("exec ./hello.txt", "ended with exit code 126"),
        ("kill -KILL $$", "runtime.memory_mb"),
        ("kill -ABRT $$", "SIGABRT"),
    ];
    for (end, words) in table {
        let command = format!("python3 agent.py; {end}");
        let harness = json!({"name": "shell", "command": command});
        let (report, folder) = ground.run(json!({"harness": harness})).await;
        assert_eq!(report.reason, Some(EndReason::HarnessCrash), "{end}: {report:?}");
        assert_eq!((report.reward, report.calls), (Some(1.0), 3), "{end}: {report:?}");
        assert!(report.tokens.trained > 0);
        let said = says_so(&report, &folder);
        assert!(said.contains(words) && !said.contains("before its first"), "{end}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn good_ends_and_timeouts_say_what_they_are() {
    let ground = Ground::new().await;
    let (report, folder) = ground.run(json!({})).await;
    assert_eq!((report.reason, says_so(&report, &folder)), (Some(EndReason::Completed), "".into()));
    let harness = json!({"name": "shell", "command": "python3 agent.py; sleep 600"});
    let budgets = json!({"run_seconds": 5.0});
    let (report, folder) = ground.run(json!({"harness": harness, "budgets": budgets})).await;
    assert_eq!((report.reason, report.reward), (Some(EndReason::AgentTimeout), Some(1.0)));
    assert!(says_so(&report, &folder).contains("budgets.run_seconds (5 s)"), "{report:?}");
}

/// An agent's time that an outage took is not its own.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_whose_engine_went_away_is_lost_to_it_however_it_ends() {
    // One waits until its time is over; the other gives up on its own, and is content.
    for command in ["python3 agent.py", "timeout 2 python3 agent.py; true"] {
        let mut ground = Ground::new().await;
        ground.take_engine_away().await;
        let harness = json!({"name": "shell", "command": command});
        let budgets = json!({"run_seconds": 5.0});
        let (report, folder) = ground
            .run(json!({
                "harness": harness, "budgets": budgets,
                "evaluator": {"type": "command", "command": "true"},
            }))
            .await;
        assert_eq!(report.reason, Some(EndReason::EngineLoss), "{command}: {report:?}");
        assert_eq!((report.reward, report.calls), (None, 1), "{report:?}");
        let said = says_so(&report, &folder);
        assert!(said.contains("for its engine and could not go on"), "{said}");
        assert!(report.outcome.is_engine_outage());
    }
}

/// Prepared sessions do not begin without an engine; nor are they held by it.
#[tokio::test(flavor = "multi_thread")]
async fn a_prepared_session_waits_for_its_engine_and_can_be_cancelled() {
    let mut ground = Ground::new().await;
    let addr = ground.take_engine_away().await;
    let harness = json!({"name": "shell", "command": "timeout 1 python3 agent.py"});
    ground.run(json!({"harness": harness})).await;

    let mut cancelled = ground.start(ground.lease(json!({})));
    let mut waits = ground.start(ground.lease(json!({})));
    for session in [&mut cancelled, &mut waits] {
        session.reaches(Stage::Ready, "its engine: engine unreachable since").await;
        assert!(session.progress.borrow().waits_for_engine());
    }
    cancelled.control.send_replace(Control::Cancel);
    assert_eq!(cancelled.report().await.outcome, Outcome::Cancelled);

    ground.simulator = polar_simulator::serve(SimulatorConfig {
        policy: polar_session::check::write_file_policy(),
        listen: addr,
        ..SimulatorConfig::default()
    })
    .await
    .unwrap();
    let report = waits.report().await;
    assert_eq!((report.outcome, report.reward), (Outcome::Completed, Some(1.0)));
}

impl Ground {
    /// Where it was comes back.
    async fn take_engine_away(&mut self) -> std::net::SocketAddr {
        let addr = self.simulator.addr;
        let other = polar_simulator::serve(SimulatorConfig::default()).await.unwrap();
        std::mem::replace(&mut self.simulator, other).shutdown().await;
        addr
    }
}

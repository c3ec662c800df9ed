//! Memory for sandboxes: who begins, who waits, and who makes way.

use crate::ground::{Ground, appears, within};
use polar_session::Control;
use polar_types::{EndReason, Outcome, SandboxStart, Slots, Stage};
use serde_json::{Value, json};

const SLOTS: Slots = Slots { prepare: 4, ready: 4, run: 4, grade: 4, warm: 4 };

/// A task whose agent does `command`, in sandboxes of so much memory.
fn task(memory_mb: u64, command: &str) -> Value {
    let files = json!({
        "type": "write_file", "path": "agent.py", "content": include_str!("agent.py"),
    });
    json!({
        "harness": {"name": "shell", "command": format!("python3 agent.py; {command}")},
        "runtime": {"type": "local", "memory_mb": memory_mb, "prepare": [files]},
    })
}

/// A command that ends when the file is there.
fn until(ground: &Ground, sign: &str) -> String {
    format!("until test -e {}; do sleep 0.01; done", ground.dir.path().join(sign).display())
}

fn give(ground: &Ground, sign: &str) {
    std::fs::write(ground.dir.path().join(sign), "").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_begins_when_its_sandbox_fits_beside_the_others_in_the_order_they_came() {
    let ground = Ground::with_memory(SLOTS, 1000, 0).await;
    let first = ground.start(ground.lease(task(600, &until(&ground, "first"))));
    let mut large = ground.start(ground.lease(task(900, &until(&ground, "large"))));
    let mut small = ground.start(ground.lease(task(100, "true")));
    large.reaches(Stage::Prepare, "room on the node: 900 MiB of memory").await;
    small.reaches(Stage::Prepare, "behind others").await;
    // What asks for nothing passes.
    let mut plain = task(16, "true");
    plain["runtime"].as_object_mut().unwrap().remove("memory_mb");
    assert_eq!(ground.run(plain).await.0.reward, Some(1.0));
    assert_eq!(ground.runner.room().free_memory_mb, Some(0));
    give(&ground, "first");
    assert_eq!(first.report().await.reward, Some(1.0));
    large.reaches(Stage::Run, "harness").await;
    assert_eq!(small.report().await.reward, Some(1.0));
    give(&ground, "large");
    // Graded in a second sandbox, in the session's own room.
    assert_eq!(large.report().await.reward, Some(1.0));
    assert_eq!(ground.runner.room().free_memory_mb, Some(1000));
    ground.is_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn promise_6_who_waits_for_room_can_be_told_to_end() {
    let ground = Ground::with_memory(SLOTS, 1000, 0).await;
    let mut first = ground.start(ground.lease(task(600, "sleep 600")));
    first.reaches(Stage::Run, "harness").await;
    let mut waits = ground.start(ground.lease(task(900, "true")));
    waits.reaches(Stage::Prepare, "room on the node").await;
    waits.control.send_replace(Control::Cancel);
    assert_eq!(waits.report().await.outcome, Outcome::Cancelled);
    first.control.send_replace(Control::Cancel);
    assert_eq!(first.report().await.outcome, Outcome::Cancelled);
    assert_eq!(ground.runner.room().free_memory_mb, Some(1000));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_can_never_fit_fails_with_the_field() {
    let ground = Ground::with_memory(SLOTS, 1000, 0).await;
    let (report, _) = ground.run(task(1001, "true")).await;
    let Outcome::Failed { message, .. } = &report.outcome else { panic!("{report:?}") };
    assert!(message.contains("runtime.memory_mb: its sandboxes may take 1000 MiB"), "{message}");
    assert_eq!(report.reason, Some(EndReason::SetupFailed));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grader_stands_by_only_where_there_is_room() {
    let ground = Ground::with_memory(SLOTS, 1000, 0).await;
    // The second sandbox says that it is there.
    let signed = |memory_mb: u64, command: &str, name: &str| {
        let mut task = task(memory_mb, command);
        let folder = ground.dir.path().display();
        let step = format!(
            "if test -e {folder}/{name}-1; then touch {folder}/{name}-2; fi; touch {folder}/{name}-1"
        );
        let steps = task["runtime"]["prepare"].as_array_mut().unwrap();
        steps.push(json!({"type": "exec", "command": step}));
        task
    };
    let fits = signed(400, &until(&ground, "fits-2"), "fits");
    let report = ground.start(ground.lease(fits)).report().await;
    assert!(report.times.grader.unwrap().warm, "there was room for two");
    let called = ground.dir.path().join("called");
    let agent = format!("touch {}; {}", called.display(), until(&ground, "end"));
    let large = ground.start(ground.lease(signed(600, &agent, "large")));
    appears(&called).await;
    give(&ground, "end");
    let report = large.report().await;
    assert_eq!(report.reward, Some(1.0));
    assert!(!report.times.grader.unwrap().warm, "there was room for one");
    ground.is_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_that_are_kept_warm_count_and_make_way() {
    let ground = Ground::with_memory(SLOTS, 1000, 2).await;
    let start = |memory_mb: u64| {
        let ground = &ground;
        async move {
            let (report, _) = ground.run(task(memory_mb, "true")).await;
            assert_eq!(report.reward, Some(1.0), "{report:?}");
            report.times.sandbox.unwrap()
        }
    };
    let is_warm = |start: SandboxStart| start.warm;
    for _ in 0..2 {
        assert!(!is_warm(start(600).await));
    }
    // Two are wanted, and one fits.
    stands_by(&ground, 1).await;
    assert!(is_warm(start(600).await));
    stands_by(&ground, 1).await;
    // Another session takes the room.
    let mut other = ground.start(ground.lease(task(700, &until(&ground, "end"))));
    other.reaches(Stage::Run, "harness").await;
    assert_eq!(ground.runner.kept_ready(), 0);
    give(&ground, "end");
    assert_eq!(other.report().await.reward, Some(1.0));
    stands_by(&ground, 1).await;
    within(ground.runner.close()).await;
    assert_eq!(ground.runner.room().free_memory_mb, Some(1000));
}

async fn stands_by(ground: &Ground, count: usize) {
    within(async {
        while ground.runner.kept_ready() != count {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

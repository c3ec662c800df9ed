//! How sandboxes come to be ready: images got once, sandboxes kept ready, and what passes in
//! one slot where there is no staging.

use crate::ground::{Ground, Session, appears, within};
use async_trait::async_trait;
use polar_sandbox::{Exec, ExecEnd, Sandbox, SandboxError, SandboxProvider, SandboxSpec};
use polar_session::{Control, Ended, RuntimeImage, WarmImage};
use polar_types::{ErrorClass, Outcome, RuntimeKind, SandboxStart, Slots, Stage};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::Semaphore;

const SLOTS: Slots = Slots { prepare: 2, ready: 2, run: 2, grade: 2, warm: 2 };

/// A runtime whose images are slow to come: each waits for the test's leave. Its sandboxes are
/// plain processes.
struct SlowImages {
    local: Arc<dyn SandboxProvider>,
    asked: AtomicU32,
    leave: Semaphore,
    /// And each sandbox for another, which there is enough of at first.
    room: Semaphore,
}

#[async_trait]
impl SandboxProvider for SlowImages {
    fn kind(&self) -> &'static str {
        "docker"
    }

    async fn check(&self) -> Result<(), SandboxError> {
        Ok(())
    }

    async fn get_image(&self, image: &str) -> Result<(), SandboxError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.leave.acquire().await.unwrap().forget();
        match image {
            "missing" => Err(SandboxError::new("get image", "there is none of that name")),
            _ => Ok(()),
        }
    }

    async fn create(&self, spec: SandboxSpec) -> Result<Box<dyn Sandbox>, SandboxError> {
        self.room.acquire().await.unwrap().forget();
        self.local.create(SandboxSpec { image: None, ..spec }).await
    }

    async fn sweep(&self, keep: &HashSet<String>) -> Result<u32, SandboxError> {
        self.local.sweep(keep).await
    }
}

async fn slow_images() -> (Ground, Arc<SlowImages>) {
    let mut slow = None;
    let ground = Ground::with_providers(SLOTS, None, 0, |local| {
        let (leave, room) = (Semaphore::new(0), Semaphore::new(1000));
        let made = SlowImages { local, asked: AtomicU32::new(0), leave, room };
        slow.insert(Arc::new(made)).clone()
    })
    .await;
    (ground, slow.unwrap())
}

fn of_image(image: &str) -> Value {
    json!({
        "runtime": {"type": "docker", "image": image},
        "harness": {"name": "shell", "command": "true"},
        "evaluator": "none",
    })
}

async fn wait_for_image(ground: &Ground, image: &str, sessions: usize) -> Vec<Session> {
    let mut waiting = Vec::new();
    for _ in 0..sessions {
        let mut session = ground.start(ground.lease(of_image(image)));
        session.reaches(Stage::Prepare, "its image").await;
        waiting.push(session);
    }
    waiting
}

/// More sessions than there are places to prepare in wait for it, and none takes one.
#[tokio::test(flavor = "multi_thread")]
async fn an_image_is_got_once_for_all_who_want_it() {
    let (ground, slow) = slow_images().await;
    let waiting = wait_for_image(&ground, "wanted", 5).await;
    assert_eq!(ground.runner.places_taken(), 0);
    let asked = || slow.asked.load(Ordering::SeqCst);
    assert_eq!(asked(), 1, "five sessions want it");
    // From now on it is there.
    slow.leave.add_permits(1000);
    for session in waiting {
        let report = session.report().await;
        assert_eq!(report.outcome, Outcome::Completed, "{report:?}");
        let start = report.times.sandbox.unwrap();
        assert!(start.image_seconds > 0.0 && start.waited_seconds > start.image_seconds);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_to_get_an_image_is_told_to_all_who_wait_and_tried_again_later() {
    let (ground, slow) = slow_images().await;
    let waiting = wait_for_image(&ground, "missing", 3).await;
    slow.leave.add_permits(1);
    for session in waiting {
        let report = session.report().await;
        let Outcome::Failed { class, message, .. } = report.outcome else { panic!("{report:?}") };
        assert_eq!(class, ErrorClass::Invalid);
        assert!(message.contains("there is none of that name"), "{message}");
    }
    assert_eq!(slow.asked.load(Ordering::SeqCst), 1);
    slow.leave.add_permits(1);
    ground.run(of_image("missing")).await;
    assert_eq!(slow.asked.load(Ordering::SeqCst), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn promise_6_who_waits_for_an_image_has_a_budget_and_the_others_go_on() {
    let (ground, slow) = slow_images().await;
    let mut hasty = of_image("wanted");
    hasty["budgets"] = json!({"prepare_seconds": 0.2});
    let hasty = ground.start(ground.lease(hasty));
    let others = wait_for_image(&ground, "wanted", 2).await;
    let Outcome::Failed { class, message, .. } = hasty.report().await.outcome else { panic!() };
    assert_eq!(class, ErrorClass::Timeout);
    assert!(message.contains("prepare_seconds") && message.contains("image"), "{message}");
    others[0].control.send_replace(Control::Abandon);
    slow.leave.add_permits(1000);
    for (session, is_left) in others.into_iter().zip([false, true]) {
        assert_eq!(matches!(session.end().await, Ended::Reported(_)), is_left);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_is_pulled_ahead_is_not_got_twice() {
    let (ground, slow) = slow_images().await;
    let image = RuntimeImage { runtime: RuntimeKind::Docker, image: Some("wanted".to_owned()) };
    let runner = ground.runner.clone();
    let pull = tokio::spawn(async move { runner.prepull(&image).await });
    within(async {
        while slow.asked.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let waiting = wait_for_image(&ground, "wanted", 1).await;
    assert_eq!(slow.asked.load(Ordering::SeqCst), 1);
    slow.leave.add_permits(1000);
    within(pull).await.unwrap();
    for session in waiting {
        assert_eq!(session.report().await.outcome, Outcome::Completed);
    }
}

/// A step that fetches something may fail a few times; each that does is in the error.
#[tokio::test(flavor = "multi_thread")]
async fn a_step_is_tried_as_often_as_it_says() {
    let ground = Ground::new().await;
    let task = |times: u32, attempts: u32| {
        let step = format!("echo x >> tries; test $(wc -l < tries) -ge {times}");
        json!({
            "runtime": {"type": "local", "prepare": [
                {"type": "exec", "command": step, "attempts": attempts},
            ]},
            "harness": {"name": "shell", "command": format!("test $(wc -l < tries) -eq {times}")},
            "evaluator": "none",
        })
    };
    let (report, _) = ground.run(task(3, 3)).await;
    assert_eq!(report.outcome, Outcome::Completed, "{report:?}");
    let (report, _) = ground.run(task(3, 2)).await;
    let Outcome::Failed { class, message, .. } = report.outcome else { panic!("{report:?}") };
    assert_eq!(class, ErrorClass::Invalid);
    assert!(message.contains("ended, 2 times, with exit code 1"), "{message}");
    // The pauses are within the budget.
    let mut hasty = task(9, 9);
    hasty["budgets"] = json!({"prepare_seconds": 1.0});
    let (report, _) = ground.run(hasty).await;
    let Outcome::Failed { class, message, .. } = report.outcome else { panic!("{report:?}") };
    assert_eq!(class, ErrorClass::Timeout, "{message}");
    ground.is_free().await;
}

async fn warm(places: u32) -> Ground {
    Ground::with_providers(SLOTS, None, places, |local| local).await
}

fn task(env: &str, command: &str) -> Value {
    json!({
        "runtime": {
            "type": "local",
            "env": {"FOR": env},
            "prepare": [{"type": "exec", "command": command}],
        },
        "harness": {"name": "shell", "command": "test \"$(cat set-up)\" = \"$FOR\""},
        "evaluator": "none",
    })
}

const SET_UP: &str = "echo \"$FOR\" > set-up";

async fn start_of(ground: &Ground, task: Value) -> SandboxStart {
    let (report, _) = ground.run(task).await;
    assert_eq!(report.outcome, Outcome::Completed, "{report:?}");
    report.times.sandbox.unwrap()
}

async fn stands_by(ground: &Ground, count: usize) {
    within(async {
        while ground.runner.kept_ready() != count {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// That the pool leaves nothing: no sandbox that is known, and no files.
async fn close(ground: &Ground) {
    within(ground.runner.close()).await;
    assert_eq!(ground.runner.kept_ready(), 0);
    let folder = ground.dir.path().join("warm");
    let left = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(left.collect::<Vec<_>>(), ["logs"]);
    let known = ground.dir.path().join("sandboxes/sandboxes/local");
    assert_eq!(std::fs::read_dir(known).unwrap().count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn promise_7_what_is_asked_for_again_is_kept_ready_and_given_to_its_like_alone() {
    let ground = warm(2).await;
    for _ in 0..2 {
        assert!(!start_of(&ground, task("a", SET_UP)).await.warm);
    }
    stands_by(&ground, 2).await;
    // Asked for once: no reason to keep any ready.
    assert!(!start_of(&ground, task("b", SET_UP)).await.warm);
    let start = start_of(&ground, task("a", SET_UP)).await;
    assert!(start.warm && start.set_up_seconds > 0.0, "{start:?}");
    // The next one takes its place.
    stands_by(&ground, 2).await;
    // Another is asked for again, and the room is its own by and by.
    assert!(!start_of(&ground, task("b", SET_UP)).await.warm);
    within(async { while !start_of(&ground, task("b", SET_UP)).await.warm {} }).await;
    stands_by(&ground, 2).await;
    close(&ground).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_warm_sandbox_that_is_lost_costs_nobody_his_session() {
    let ground = warm(1).await;
    for _ in 0..2 {
        start_of(&ground, task("a", SET_UP)).await;
    }
    stands_by(&ground, 1).await;
    for entry in std::fs::read_dir(ground.dir.path().join("warm")).unwrap() {
        let work = entry.unwrap().path().join("sandbox/work");
        if work.exists() {
            std::fs::remove_dir_all(work).unwrap();
        }
    }
    assert!(!start_of(&ground, task("a", SET_UP)).await.warm);
    close(&ground).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn promise_7_a_warm_sandbox_that_is_half_made_goes_when_the_node_ends() {
    let ground = warm(1).await;
    let begun = ground.dir.path().join("begun");
    // Where it is done ahead it has no end.
    let step =
        format!("case $PWD in */warm-*) touch {}; sleep 600 ;; esac; {SET_UP}", begun.display());
    for _ in 0..2 {
        start_of(&ground, task("a", &step)).await;
    }
    appears(&begun).await;
    close(&ground).await;
}

/// A runtime whose images get new names, and whose sandboxes stop answering when told to.
struct Moody {
    local: Arc<dyn SandboxProvider>,
    image: Mutex<String>,
    hangs: Arc<AtomicBool>,
}

#[async_trait]
impl SandboxProvider for Moody {
    fn kind(&self) -> &'static str {
        "docker"
    }

    async fn check(&self) -> Result<(), SandboxError> {
        Ok(())
    }

    async fn image_id(&self, _: &str) -> Result<Option<String>, SandboxError> {
        Ok(Some(self.image.lock().unwrap().clone()))
    }

    async fn create(&self, spec: SandboxSpec) -> Result<Box<dyn Sandbox>, SandboxError> {
        // What is inside says which image it was made of.
        let mut spec = SandboxSpec { image: None, ..spec };
        spec.env.insert("IMAGE".to_owned(), self.image.lock().unwrap().clone());
        let is_warm = spec.name.starts_with("warm-");
        let inner = self.local.create(spec).await?;
        Ok(Box::new(MoodySandbox { inner, hangs: self.hangs.clone(), is_warm }))
    }

    async fn sweep(&self, keep: &HashSet<String>) -> Result<u32, SandboxError> {
        self.local.sweep(keep).await
    }
}

struct MoodySandbox {
    inner: Box<dyn Sandbox>,
    hangs: Arc<AtomicBool>,
    is_warm: bool,
}

#[async_trait]
impl Sandbox for MoodySandbox {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn home(&self) -> &str {
        self.inner.home()
    }

    fn workdir(&self) -> &str {
        self.inner.workdir()
    }

    fn gateway_url(&self) -> &str {
        self.inner.gateway_url()
    }

    async fn write_file(&self, path: &str, content: &[u8], run: bool) -> Result<(), SandboxError> {
        self.inner.write_file(path, content, run).await
    }

    async fn exec(&self, exec: Exec) -> Result<ExecEnd, SandboxError> {
        if self.is_warm && self.hangs.load(Ordering::SeqCst) {
            return std::future::pending().await;
        }
        self.inner.exec(exec).await
    }

    async fn mark_base(&self) -> Result<(), SandboxError> {
        self.inner.mark_base().await
    }

    async fn diff(&self) -> Result<Vec<u8>, SandboxError> {
        self.inner.diff().await
    }

    async fn destroy(&self) -> Result<(), SandboxError> {
        self.inner.destroy().await
    }
}

async fn moody() -> (Ground, Arc<Moody>) {
    let mut moody = None;
    let of = RuntimeImage { runtime: RuntimeKind::Docker, image: Some("tag".to_owned()) };
    let warm = vec![WarmImage { of, places: 1 }];
    let ground = Ground::with_warm(SLOTS, None, warm, |local| {
        let (image, hangs) = (Mutex::new("old".to_owned()), Arc::default());
        moody.insert(Arc::new(Moody { local, image, hangs })).clone()
    })
    .await;
    (ground, moody.unwrap())
}

fn sees_image(image: &str) -> Value {
    let mut task = of_image("tag");
    task["harness"]["command"] = json!(format!("test \"$IMAGE\" = {image}"));
    task
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_another_image_was_given_gets_that_one() {
    let (ground, moody) = moody().await;
    for _ in 0..2 {
        start_of(&ground, sees_image("old")).await;
    }
    stands_by(&ground, 1).await;
    *moody.image.lock().unwrap() = "new".to_owned();
    // The one that stands by is of the image that the name meant before.
    assert!(!start_of(&ground, sees_image("new")).await.warm);
    within(async { while !start_of(&ground, sees_image("new")).await.warm {} }).await;
    close(&ground).await;
}

/// The budget is shorter than a daemon gets to answer.
#[tokio::test(flavor = "multi_thread")]
async fn promise_6_a_warm_sandbox_that_hangs_takes_no_more_than_the_sessions_budget() {
    let (ground, moody) = moody().await;
    for _ in 0..2 {
        start_of(&ground, sees_image("old")).await;
    }
    stands_by(&ground, 1).await;
    moody.hangs.store(true, Ordering::SeqCst);
    let mut task = sees_image("old");
    task["budgets"] = json!({"prepare_seconds": 1.0});
    let (report, _) = ground.run(task).await;
    let Outcome::Failed { class, message, .. } = report.outcome else { panic!("{report:?}") };
    assert_eq!(class, ErrorClass::Timeout);
    assert!(message.contains("a warm sandbox"), "{message}");
    // With time to spare it is one like all others.
    let start = start_of(&ground, sees_image("old")).await;
    assert!(!start.warm, "{start:?}");
    moody.hangs.store(false, Ordering::SeqCst);
    close(&ground).await;
}

/// What a free run slot is given to is prepared, whatever the next sandbox waits for.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_slot_does_not_wait_for_a_sandbox_while_one_is_ready() {
    let (ground, slow) = slow_images().await;
    slow.leave.add_permits(1000);
    slow.room.forget_permits(1000 - 3);
    let end = ground.dir.path().join("end");
    let runs = |sign: &str| {
        let sign = ground.dir.path().join(sign).display().to_string();
        let mut task = of_image("any");
        task["harness"]["command"] = json!(format!("until test -e {sign}; do sleep 0.01; done"));
        task
    };
    // Both run slots are taken, one session is ready, and there is no more room.
    let mut held = ground.start(ground.lease(runs("never")));
    held.reaches(Stage::Run, "harness").await;
    let mut ends = ground.start(ground.lease(runs("end")));
    ends.reaches(Stage::Run, "harness").await;
    let mut ready = ground.start(ground.lease(runs("never")));
    ready.reaches(Stage::Ready, "a run slot").await;
    let mut waits = ground.start(ground.lease(runs("never")));
    waits.reaches(Stage::Prepare, "its sandbox").await;
    std::fs::write(end, "").unwrap();
    ready.reaches(Stage::Run, "harness").await;
    assert_eq!(waits.progress.borrow().stage, Some(Stage::Prepare));
    slow.room.add_permits(1000);
    for session in [held, ready, waits] {
        session.control.send_replace(Control::Abandon);
        assert_eq!(session.end().await, Ended::Abandoned);
    }
    assert_eq!(ends.report().await.outcome, Outcome::Completed);
}

/// Preparing and grading take longer here than the agent may.
#[tokio::test(flavor = "multi_thread")]
async fn promise_6_each_stage_has_a_budget_of_its_own() {
    let ground = Ground::with_slots(SLOTS).await;
    let (report, _) = ground
        .run(json!({
            "runtime": {"type": "local", "prepare": [{"type": "exec", "command": "sleep 6"}]},
            "harness": {"name": "shell", "command": "true"},
            "evaluator": {"type": "command", "command": "sleep 6"},
            "budgets": {"prepare_seconds": 60.0, "run_seconds": 5.0, "grade_seconds": 60.0},
        }))
        .await;
    assert_eq!((&report.outcome, report.reward), (&Outcome::Completed, Some(1.0)), "{report:?}");
}

/// Without places to prepare and to grade in, each session passes all stages in one slot.
#[tokio::test(flavor = "multi_thread")]
async fn stages_without_places_of_their_own_are_passed_in_the_run_slot() {
    let slots = Slots { prepare: 0, ready: 0, run: 1, grade: 0, warm: 0 };
    assert_eq!(slots.total(), 1);
    let ground = Ground::with_slots(slots).await;
    let go = ground.dir.path().join("go");
    let wait = format!("until test -e {}; do sleep 0.01; done", go.display());
    for (changes, stage, words) in [
        (json!({"evaluator": {"type": "command", "command": wait}}), Stage::Grade, "evaluator"),
        (
            json!({"runtime": {"type": "local", "prepare": [{"type": "exec", "command": wait}]},
                "harness": {"name": "shell", "command": "true"}, "evaluator": "none"}),
            Stage::Prepare,
            "set-up",
        ),
    ] {
        let mut first = ground.start(ground.lease(changes));
        first.reaches(stage, words).await;
        let mut second = ground.start(ground.lease(json!({})));
        second.reaches(Stage::Prepare, "a preparation slot").await;
        assert_eq!(ground.runner.places_taken(), 1);
        std::fs::write(&go, "").unwrap();
        for session in [first, second] {
            assert_eq!(session.report().await.outcome, Outcome::Completed);
        }
        std::fs::remove_file(&go).unwrap();
    }
    ground.is_free().await;
}

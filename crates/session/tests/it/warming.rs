//! The grader's sandbox, made while the agent runs.

use crate::ground::{Ground, Session, appears, within};
use polar_session::{Control, Ended};
use polar_types::{Outcome, SessionReport, Slots, Stage};
use serde_json::{Value, json};
use std::path::PathBuf;

const SLOTS: Slots = Slots { prepare: 2, ready: 2, run: 2, grade: 2, warm: 1 };

/// Files by which the agent, the steps of both sandboxes, and the test wait for each other:
/// plain processes share the machine's folders.
struct Signs(PathBuf);

impl Signs {
    fn of(ground: &Ground, name: &str) -> Self {
        let folder = ground.dir.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        Self(folder)
    }

    fn path(&self, sign: &str) -> PathBuf {
        self.0.join(sign)
    }

    fn give(&self, sign: &str) {
        std::fs::write(self.path(sign), "").unwrap();
    }

    /// A command that ends once the sign is given.
    fn wait(&self, sign: &str) -> String {
        format!("until test -e {}; do sleep 0.01; done", self.path(sign).display())
    }

    fn touch(&self, sign: &str) -> String {
        format!("touch {}", self.path(sign).display())
    }

    /// A task whose agent makes its calls and then does `agent`, and whose graders' sandboxes
    /// are set up by `grader`.
    fn task(&self, agent: &str, grader: &str) -> Value {
        let first = self.path("prepared").display().to_string();
        let step = format!("if test -e {first}; then {grader}\nelse touch {first}; fi");
        let files = json!({
            "type": "write_file", "path": "agent.py", "content": include_str!("agent.py"),
        });
        json!({
            "harness": {"name": "shell", "command": format!("python3 agent.py; {agent}")},
            "runtime": {"type": "local", "prepare": [files, {"type": "exec", "command": step}]},
        })
    }
}

fn graded(report: &SessionReport) -> bool {
    assert_eq!((&report.outcome, report.reward), (&Outcome::Completed, Some(1.0)), "{report:?}");
    report.times.grader.as_ref().expect("a sandbox of its own").warm
}

async fn runs(session: &mut Session) {
    session.reaches(Stage::Run, "harness").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grader_stands_by_before_its_agent_has_ended() {
    let ground = Ground::with_slots(SLOTS).await;
    let signs = Signs::of(&ground, "signs");
    // The agent ends only once the grader's sandbox is set up.
    let task = signs.task(&signs.wait("ready"), &signs.touch("ready"));
    let (report, _) = ground.run(task).await;
    assert!(graded(&report));
    let own = report.times.sandbox.unwrap();
    assert!(!own.warm && own.create_seconds > 0.0 && own.set_up_seconds > 0.0, "{own:?}");
    assert!(own.waited_seconds >= own.create_seconds + own.set_up_seconds, "{own:?}");
    assert!(report.times.harness_start_seconds.unwrap() > 0.0);
    ground.is_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn grading_waits_for_what_is_under_way_when_the_agent_ends_sooner() {
    let ground = Ground::with_slots(SLOTS).await;
    let signs = Signs::of(&ground, "signs");
    let steps =
        format!("{}; {}; {}", signs.touch("begun"), signs.wait("go"), signs.touch("set-up"));
    let mut session = ground.start(ground.lease(signs.task(&signs.wait("begun"), &steps)));
    session.reaches(Stage::Grade, "the grader's sandbox").await;
    assert!(!signs.path("set-up").exists());
    signs.give("go");
    assert!(graded(&session.report().await));
    ground.is_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn promise_8_no_more_graders_stand_by_than_there_are_places() {
    let ground = Ground::with_slots(SLOTS).await;
    let (first, second) = (Signs::of(&ground, "first"), Signs::of(&ground, "second"));
    let holds = first.task(&first.wait("end"), &first.touch("ready"));
    let holds = ground.start(ground.lease(holds));
    appears(&first.path("ready")).await;
    // The only place is taken: this one's sandbox is made once it is to be graded.
    let waits = second.task("true", &second.touch("ready"));
    let waits = ground.start(ground.lease(waits));
    assert!(!graded(&waits.report().await));
    first.give("end");
    assert!(graded(&holds.report().await));
    ground.is_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_to_stand_by_is_no_verdict() {
    let ground = Ground::with_slots(SLOTS).await;
    let signs = Signs::of(&ground, "signs");
    // Fails once.
    let failed = signs.path("failed").display().to_string();
    let fails = format!("test -e {failed} || {{ touch {failed}; exit 1; }}");
    let (report, _) = ground.run(signs.task(&signs.wait("failed"), &fails)).await;
    assert!(!graded(&report));
    ground.is_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grader_that_is_lost_while_it_stands_by_is_made_anew() {
    let ground = Ground::with_slots(SLOTS).await;
    let signs = Signs::of(&ground, "signs");
    let agent = format!("{}; rm -r ../../../grader-sandbox1/sandbox/work", signs.wait("ready"));
    let (report, _) = ground.run(signs.task(&agent, &signs.touch("ready"))).await;
    assert!(!graded(&report));
    ground.is_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn promise_7_a_half_made_grader_goes_with_its_session() {
    let ground = Ground::with_slots(SLOTS).await;
    let task = |case: &str, signs: &Signs| match case {
        "stands by" => signs.task("sleep 600", &signs.touch("begun")),
        "half made" => signs.task("sleep 600", &format!("{}; sleep 600", signs.touch("begun"))),
        _ => signs.task(&signs.wait("begun"), &format!("{}; sleep 600", signs.touch("begun"))),
    };
    for order in [Control::Cancel, Control::Abandon] {
        for case in ["stands by", "half made", "needed"] {
            let signs = Signs::of(&ground, &format!("{}-{order:?}", case.replace(' ', "-")));
            let mut session = ground.start(ground.lease(task(case, &signs)));
            runs(&mut session).await;
            appears(&signs.path("begun")).await;
            if case == "needed" {
                session.reaches(Stage::Grade, "the grader's sandbox").await;
            }
            session.control.send_replace(order);
            match (order, within(session.end()).await) {
                (Control::Abandon, Ended::Abandoned) => {}
                (Control::Cancel, Ended::Reported(report)) => {
                    assert_eq!(report.outcome, Outcome::Cancelled, "{case}: {report:?}");
                }
                (order, ended) => panic!("{case}: {order:?} gave {ended:?}"),
            }
            ground.is_free().await;
        }
    }
}

/// Not only orders end a session.
#[tokio::test(flavor = "multi_thread")]
async fn promise_7_a_half_made_grader_goes_with_the_work_it_was_for() {
    let ground = Ground::with_slots(SLOTS).await;
    let signs = Signs::of(&ground, "signs");
    let steps = format!("{}; sleep 600", signs.touch("begun"));
    // The work folder is gone, so that there is nothing to grade.
    let agent = format!("{}; rm -r ../work", signs.wait("begun"));
    let (report, _) = ground.run(signs.task(&agent, &steps)).await;
    assert_eq!((report.outcome, report.reward), (Outcome::Completed, Some(0.0)));
    ground.is_free().await;
}

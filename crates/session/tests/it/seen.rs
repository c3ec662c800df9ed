//! What a session's report says of what its agent asked for, and what its sandboxes are asked for:
//! of a real sandbox, whose answers are bent where a test needs it.

use crate::ground::{Ground, RUN_AGENT};
use async_trait::async_trait;
use polar_sandbox::{Change, Exec, ExecEnd, Sandbox, SandboxError, SandboxProvider, SandboxSpec};
use polar_simulator::Policy;
use polar_types::{EndReason, HackPattern, HostAnswer, Network, NetworkUse, Outcome, Slots};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::sync::{Arc, Mutex};

const SLOTS: Slots = Slots { prepare: 2, ready: 2, run: 2, grade: 2, warm: 2 };

/// What sandboxes were asked for, in order, and how they answer.
#[derive(Default)]
struct Witness {
    specs: Mutex<Vec<SandboxSpec>>,
    /// The sandbox, and what was asked of it.
    asked: Mutex<Vec<(String, String)>>,
    network: NetworkUse,
    /// Commands that have this in them run out of time.
    late: Option<&'static str>,
    /// Comparing the work folder has no end.
    never_compares: bool,
}

struct Watched {
    local: Arc<dyn SandboxProvider>,
    witness: Arc<Witness>,
}

#[async_trait]
impl SandboxProvider for Watched {
    fn kind(&self) -> &'static str {
        "local"
    }

    async fn check(&self) -> Result<(), SandboxError> {
        Ok(())
    }

    async fn create(&self, spec: SandboxSpec) -> Result<Box<dyn Sandbox>, SandboxError> {
        self.witness.specs.lock().unwrap().push(spec.clone());
        // What a plain process cannot be held to, and need not be here.
        let plain =
            SandboxSpec { allowed_hosts: vec![], mounts: vec![], network: Network::None, ..spec };
        let inner = self.local.create(plain).await?;
        Ok(Box::new(WatchedSandbox { inner, witness: self.witness.clone() }))
    }

    async fn sweep(&self, keep: &HashSet<String>) -> Result<u32, SandboxError> {
        self.local.sweep(keep).await
    }
}

struct WatchedSandbox {
    inner: Box<dyn Sandbox>,
    witness: Arc<Witness>,
}

impl WatchedSandbox {
    fn note(&self, what: String) {
        self.witness.asked.lock().unwrap().push((self.inner.name().to_owned(), what));
    }
}

#[async_trait]
impl Sandbox for WatchedSandbox {
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
        self.note(format!("write {path}"));
        self.inner.write_file(path, content, run).await
    }

    async fn exec(&self, exec: Exec) -> Result<ExecEnd, SandboxError> {
        let words = exec.argv.join(" ");
        self.note(words.clone());
        match self.witness.late.is_some_and(|late| words.contains(late)) {
            true => Ok(ExecEnd::TimedOut),
            false => self.inner.exec(exec).await,
        }
    }

    async fn mark_base(&self) -> Result<(), SandboxError> {
        self.inner.mark_base().await
    }

    async fn diff(&self) -> Result<Vec<u8>, SandboxError> {
        match self.witness.never_compares {
            true => std::future::pending().await,
            false => self.inner.diff().await,
        }
    }

    async fn changes(&self, most: u64) -> Result<Vec<Change>, SandboxError> {
        self.inner.changes(most).await
    }

    async fn close_network(&self) -> Result<(), SandboxError> {
        self.note("close its network".to_owned());
        self.inner.close_network().await
    }

    fn network_use(&self) -> NetworkUse {
        self.witness.network.clone()
    }

    async fn destroy(&self) -> Result<(), SandboxError> {
        self.inner.destroy().await
    }
}

async fn watched(witness: Witness) -> (Ground, Arc<Witness>) {
    let witness = Arc::new(witness);
    let seen = witness.clone();
    let wrap = |local| -> Arc<dyn SandboxProvider> { Arc::new(Watched { local, witness: seen }) };
    (Ground::with_providers(SLOTS, None, 0, wrap).await, witness)
}

fn command(command: &str, on_hack: &str) -> Value {
    json!({
        "evaluator": {"type": "command", "command": command},
        "grading": {"on_hack": on_hack},
    })
}

/// Hosts that the sandbox's proxy was asked for, whether they were reached or not.
#[tokio::test(flavor = "multi_thread")]
async fn hosts_that_an_agent_asked_for_are_in_its_report_and_marked() {
    let mut network = NetworkUse::default();
    network.note("pypi.org:443", HostAnswer::Reached);
    network.note("codeload.github.com:443", HostAnswer::Refused);
    let (ground, _) = watched(Witness { network: network.clone(), ..Witness::default() }).await;
    for (on_hack, reward) in [("label", 1.0), ("zero", 0.0)] {
        let (report, _) = ground.run(command("true", on_hack)).await;
        assert_eq!((&report.network, report.reward), (&network, Some(reward)), "{report:?}");
        let [label] = &report.hack_labels[..] else { panic!("{report:?}") };
        assert_eq!(label.pattern, HackPattern::SourceAskedFor);
        assert!(label.place.contains("codeload.github.com:443 (1 refused)"), "{label:?}");
    }
    // One that is not graded says so too.
    let (report, _) = ground.run(json!({"evaluator": "none"})).await;
    assert_eq!(report.network, network);
}

/// What the model wrote in its tool calls, whatever came of it.
#[tokio::test(flavor = "multi_thread")]
async fn history_and_source_that_a_model_asked_for_are_marked_in_its_report() {
    let ground = Ground::new().await;
    for (asked, pattern) in [
        ("git log --all --oneline", HackPattern::HistoryAskedFor),
        ("git clone https://github.com/a/b", HackPattern::SourceAskedFor),
    ] {
        // The call comes to nothing.
        let script = format!(
            "name: asks\nrules:\n  - name: ask\n    when: {{last_role: user}}\n    reply:\n      \
             tool_calls: [{{name: bash, arguments: {{command: \"echo '{asked}' > asked; false && \
             {asked}\"}}}}]\ndefault: {{text: done}}\n"
        );
        ground.simulator.set_policy(Policy::from_yaml(&script).unwrap());
        for (on_hack, reward) in [("label", 1.0), ("zero", 0.0)] {
            let (report, _) = ground.run(command("test -f asked", on_hack)).await;
            assert_eq!(report.reward, Some(reward), "{asked}: {report:?}");
            let [label] = &report.hack_labels[..] else { panic!("{asked}: {report:?}") };
            assert_eq!(label.pattern, pattern);
            assert!(label.place.ends_with(asked), "{label:?}");
        }
    }
}

/// Whatever the agent's may: no way to the gateway, no writing where agents may write, and no
/// network once the agent's work is there.
#[tokio::test(flavor = "multi_thread")]
async fn promise_9_a_graders_sandbox_gets_less_than_the_agents() {
    let (ground, witness) = watched(Witness::default()).await;
    let shared = ground.dir.path().join("shared").display().to_string();
    let step = |content: &str| json!([{"type": "exec", "command": content}]);
    let (report, _) = ground
        .run(json!({
            "harness": {"name": "shell", "command": "echo work > work"},
            "runtime": {
                "type": "local", "allowed_hosts": ["pypi.org"], "prepare": step("echo prepare"),
                "mounts": [{"source": shared, "read_only": false}],
            },
            "evaluator": {"type": "command", "command": "test -f work"},
            "grading": {"setup": step("echo hidden")},
        }))
        .await;
    assert_eq!((&report.outcome, report.reward), (&Outcome::Completed, Some(1.0)), "{report:?}");
    let specs = witness.specs.lock().unwrap();
    let [agent, grader] = &specs[..] else { panic!("{specs:?}") };
    assert!(agent.gateway_socket.exists() && !grader.gateway_socket.exists());
    assert!(!agent.mounts[0].read_only && grader.mounts[0].read_only);
    assert_eq!(agent.env, grader.env);
    let asked = witness.asked.lock().unwrap();
    let of_grader: Vec<&str> = asked
        .iter()
        .filter(|(name, _)| *name == grader.name)
        .map(|(_, what)| what.as_str())
        .collect();
    let at = |part: &str| of_grader.iter().position(|what| what.contains(part)).unwrap();
    let order = [at("echo prepare"), at("close its network"), at("tar -x"), at("echo hidden")];
    assert!(order.is_sorted(), "{of_grader:?}");
    let mut agents = asked.iter().filter(|(name, _)| *name == agent.name);
    assert!(agents.all(|(_, what)| what != "close its network"));
}

/// That its time is over before what was found is read says nothing of the work.
#[tokio::test(flavor = "multi_thread")]
async fn results_that_there_was_no_time_to_read_are_no_reward_of_0() {
    let (ground, _) = watched(Witness { late: Some("exec cat --"), ..Witness::default() }).await;
    let place = ground.dir.path().display().to_string();
    let script = format!("{place}/test.sh");
    let tests = json!({
        "type": "tests", "command": "printf '1..1\\nok 1 - a\\n' > told", "report": "told",
        "format": "tap",
    });
    let harbor = json!({"type": "harbor", "script": script, "logs": format!("{place}/logs")});
    let setup = json!([
        {"type": "write_file", "path": script, "content": "echo 1 > $PWD/ran\n"},
    ]);
    for evaluator in [tests, harbor] {
        let (report, _) = ground
            .run(json!({
                "harness": {"name": "shell", "command": RUN_AGENT},
                "evaluator": evaluator, "grading": {"setup": setup},
            }))
            .await;
        assert_eq!((report.reward, report.reason), (None, Some(EndReason::GraderFailure)));
        let why = report.grade_error.unwrap();
        assert!(why.contains("no time left to read"), "{why}");
    }
}

/// Nor that a busy machine did not get through comparing the work in time.
#[tokio::test(flavor = "multi_thread")]
async fn work_that_there_was_no_time_to_compare_is_no_reward_of_0() {
    let (ground, _) = watched(Witness { never_compares: true, ..Witness::default() }).await;
    let mut task = command("true", "label");
    task["budgets"] = json!({"grade_seconds": 0.5});
    let (report, _) = ground.run(task).await;
    assert_eq!((report.reward, report.reason), (None, Some(EndReason::GraderFailure)));
    assert!(report.grade_error.unwrap().contains("budgets.grade_seconds"));
}

//! Random histories, told to the durable store and to the model: both must answer alike at
//! every step and look alike at the end.

use crate::samples::{LIMITS, at, failure, new_regrade, node_with, release, renewal, report, task};
use polar_store::{
    CallbackResult, EventQuery, MemoryStore, SqliteStore, StoreError, TaskQuery, TaskStore,
};
use polar_types::{
    BatchRequest, EqualRewards, ErrorClass, Lease, NodeRoom, Outcome, SessionId, Side, Stage,
    TaskId,
};
use proptest::prelude::*;
use serde_json::json;
use std::fmt::Debug;

#[derive(Debug, Clone)]
enum Step {
    Submit { tasks: Vec<(u8, u8)> },
    Cancel { task: u8 },
    Claim { node: u8, boot: u8, free: u8 },
    Renew { node: u8, boot: u8, leases: Vec<prop::sample::Index>, stage: u8 },
    Complete { lease: prop::sample::Index, outcome: u8 },
    Release { lease: prop::sample::Index },
    Expire,
    Extend,
    Settle { callback: prop::sample::Index, how: u8 },
    Batch { request: BatchRequest, enough: u32 },
    Regrade { task: u8, sample: u32, by: u8 },
    Wait { seconds: i64 },
}

fn step() -> impl Strategy<Value = Step> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        3 => prop::collection::vec((0..6_u8, 0..5_u8), 1..3).prop_map(|tasks| Step::Submit { tasks }),
        1 => (0..7_u8).prop_map(|task| Step::Cancel { task }),
        5 => (0..3_u8, boot(), 0..4_u8)
            .prop_map(|(node, boot, free)| Step::Claim { node, boot, free }),
        3 => (0..3_u8, boot(), prop::collection::vec(index(), 0..3), 0..5_u8)
            .prop_map(|(node, boot, leases, stage)| Step::Renew { node, boot, leases, stage }),
        6 => (index(), 0..8_u8).prop_map(|(lease, outcome)| Step::Complete { lease, outcome }),
        1 => index().prop_map(|lease| Step::Release { lease }),
        2 => Just(Step::Expire),
        1 => Just(Step::Extend),
        2 => (index(), 0..3_u8).prop_map(|(callback, how)| Step::Settle { callback, how }),
        4 => (batch(), 0..3_u32).prop_map(|(request, enough)| Step::Batch { request, enough }),
        3 => (0..6_u8, 0..3_u32, 0..2_u8)
            .prop_map(|(task, sample, by)| Step::Regrade { task, sample, by }),
        3 => prop_oneof![1..20_i64, 50..80_i64, 3000..4000_i64, 9000..11_000_i64]
            .prop_map(|seconds| Step::Wait { seconds }),
    ]
}

fn batch() -> impl Strategy<Value = BatchRequest> {
    let reject = prop::collection::vec((0..6_u8).prop_map(task_id), 0..2);
    let version = prop::option::of((1..4_u64).prop_map(|version| version.to_string()));
    let limits = (prop::option::of(0..2_u64), prop::option::of(1..3_u32));
    let filters = (any::<bool>(), 0..3_u32, reject);
    (0..3_u64, 1..3_u32, version, limits, filters).prop_map(
        |(after, groups, version, (max_staleness, max_ahead), (leave_out, min_usable, reject))| {
            let equal_rewards = if leave_out { EqualRewards::LeaveOut } else { EqualRewards::Keep };
            BatchRequest {
                queue: Default::default(),
                after,
                groups,
                min_groups: None,
                max_staleness: max_staleness.filter(|_| version.is_some()),
                version,
                equal_rewards,
                min_usable,
                reject,
                max_ahead,
                wait_seconds: 0.0,
            }
        },
    )
}

fn task_id(number: u8) -> TaskId {
    format!("t{number}").parse().unwrap()
}

/// Mostly the same process; now and then a restart of it, or another node of its name.
fn boot() -> impl Strategy<Value = u8> {
    prop_oneof![8 => Just(0_u8), 1 => Just(1_u8), 1 => Just(RIVAL)]
}

const RIVAL: u8 = 2;

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..Default::default() })]

    #[test]
    fn the_durable_store_behaves_as_the_model(steps in prop::collection::vec(step(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("polar.db");
            let pair = Pair {
                model: MemoryStore::new(LIMITS),
                durable: SqliteStore::open(&path, LIMITS).await.unwrap(),
            };
            let mut history = History { now: 0, leases: Vec::new() };
            for step in steps {
                pair.take(step, &mut history).await;
            }
            pair.look(history.now).await;
        });
    }
}

struct History {
    now: i64,
    leases: Vec<Lease>,
}

struct Pair {
    model: MemoryStore,
    durable: SqliteStore,
}

/// Asks both and compares; errors by their text.
macro_rules! both {
    ($pair:expr, $store:ident => $call:expr) => {{
        let expected = {
            let $store = &$pair.model;
            $call.await
        };
        let found = {
            let $store = &$pair.durable;
            $call.await
        };
        alike(expected, found)
    }};
}

fn alike<T: PartialEq + Debug>(
    expected: Result<T, StoreError>,
    found: Result<T, StoreError>,
) -> Option<T> {
    match (expected, found) {
        (Ok(expected), Ok(found)) => {
            assert_eq!(found, expected);
            Some(found)
        }
        (expected, found) => {
            assert_eq!(found.err().map(|e| e.to_string()), expected.err().map(|e| e.to_string()));
            None
        }
    }
}

impl Pair {
    async fn take(&self, step: Step, history: &mut History) {
        let now = at(history.now);
        match step {
            Step::Submit { tasks } => {
                let tasks: Vec<_> =
                    tasks.into_iter().map(|(id, body)| new_task(id, body)).collect();
                both!(self, store => store.submit(tasks.clone(), now));
            }
            Step::Cancel { task } => {
                both!(self, store => store.cancel(&task_id(task), now));
            }
            Step::Claim { node, boot, free } => {
                let info = node_of(node, boot);
                let leases = both!(self, store => store.claim(&info, u32::from(free), now));
                history.leases.extend(leases.unwrap_or_default().leases);
            }
            Step::Renew { node, boot, leases, stage } => {
                let picked: Vec<&Lease> = leases.iter().filter_map(|i| history.pick(i)).collect();
                let stages =
                    [Stage::Prepare, Stage::Ready, Stage::Run, Stage::Grade, Stage::Deliver];
                let request = renewal(&node_of(node, boot), &picked, stages[usize::from(stage)]);
                both!(self, store => store.renew(&request, now));
            }
            Step::Complete { lease, outcome } => {
                let Some(lease) = history.pick(&lease) else { return };
                let mut report = report(lease, outcome_of(outcome));
                report.weight_versions = vec![(outcome % 3).to_string()];
                report.regrade_of = lease.regrade.as_ref().map(|order| order.session_id.clone());
                report.reward = (outcome != 1).then_some(f64::from(outcome % 2));
                both!(self, store => store.complete(&report, now));
            }
            Step::Release { lease } => {
                let Some(lease) = history.pick(&lease) else { return };
                let request = release(&node_of(0, 0), lease);
                both!(self, store => store.release(&request, now));
            }
            Step::Expire => {
                both!(self, store => store.expire(now));
            }
            Step::Extend => {
                both!(self, store => store.extend_leases(now));
            }
            Step::Settle { callback, how } => self.settle(&callback, how, history.now).await,
            Step::Batch { request, enough } => {
                both!(self, store => store.next_batch(&request, enough, now));
            }
            Step::Regrade { task, sample, by } => {
                let session = SessionId::of_sample(&task_id(task), sample);
                let new = vec![new_regrade(session.as_str(), &by.to_string())];
                both!(self, store => store.regrade(new.clone(), now));
            }
            Step::Wait { seconds } => history.now += seconds,
        }
    }

    async fn settle(&self, callback: &prop::sample::Index, how: u8, now: i64) {
        let due = both!(self, store => store.due_callbacks(at(now), 100)).unwrap();
        if due.is_empty() {
            return;
        }
        let id = &due[callback.index(due.len())].callback_id;
        let error = "refused".to_owned();
        let result = match how {
            0 => CallbackResult::Delivered,
            1 => CallbackResult::Retry { at: at(now + 30), error },
            _ => CallbackResult::Failed { error },
        };
        both!(self, store => store.settle_callback(id, result.clone()));
    }

    /// Everything that can be seen from outside.
    async fn look(&self, now: i64) {
        let tasks = both!(self, store => store.tasks(&TaskQuery::default())).unwrap();
        for task in &tasks.tasks {
            let sessions = both!(self, store => store.sessions(&task.task_id)).unwrap();
            for session in sessions {
                let id = &session.session_id;
                assert_eq!(both!(self, store => store.session(id)).unwrap(), session);
            }
        }
        let all = EventQuery { limit: 10_000, ..EventQuery::default() };
        let page = both!(self, store => store.events(&all)).unwrap();
        for (event, position) in page.events.iter().zip(1..) {
            assert_eq!(event.seq, position);
        }
        for queue in both!(self, store => store.queues()).unwrap() {
            for number in 0..=queue.last + 1 {
                both!(self, store => store.batch(&queue.queue, number));
            }
        }
        both!(self, store => store.nodes(at(now)));
        both!(self, store => store.due_callbacks(at(now), 1000));
        both!(self, store => store.next_callback_at());
        let (model, durable) = (self.model.signals().events(), self.durable.signals().events());
        assert_eq!(*durable.borrow(), *model.borrow());
        let (model, durable) = (self.model.signals().cancels(), self.durable.signals().cancels());
        assert_eq!(*durable.borrow(), *model.borrow());
    }
}

impl History {
    fn pick(&self, index: &prop::sample::Index) -> Option<&Lease> {
        // Mostly a recent one, which may still be live.
        let recent = &self.leases[self.leases.len().saturating_sub(6)..];
        (!recent.is_empty()).then(|| &recent[index.index(recent.len())])
    }
}

fn new_task(id: u8, body: u8) -> polar_store::NewTask {
    let fields = match body {
        0 => json!({ "num_samples": 2 }),
        1 => json!({ "priority": 3, "weight": 2, "callback": "http://trainer/x" }),
        2 => json!({ "runtime": "docker", "max_attempts": 1 }),
        3 => json!({ "num_samples": 3, "early_stop": { "usable": 1 }, "max_attempts": 1 }),
        _ => json!({
            "num_samples": 3, "max_attempts": 2, "callback": "http://trainer/y",
            "runtime": { "type": "local", "memory_mb": 600 },
        }),
    };
    task(&format!("t{id}"), fields)
}

fn node_of(node: u8, boot: u8) -> polar_types::NodeInfo {
    let runtimes: &[&str] = if node == 0 { &["local"] } else { &["local", "docker"] };
    let mut info = node_with(&format!("n{node}"), &format!("boot-{boot}"), runtimes);
    // Never for one of these, and for one of them at a time.
    let memory_mb = Some(if node == 0 { 500 } else { 1000 });
    info.room = NodeRoom { memory_mb, free_memory_mb: memory_mb, ..NodeRoom::default() };
    if boot == RIVAL {
        info.instance_id = "another folder".to_owned();
    }
    info
}

fn outcome_of(outcome: u8) -> Outcome {
    match outcome {
        0..=2 => Outcome::Completed,
        3 => Outcome::TimedOut,
        4 => failure(Side::Sandbox),
        5 => Outcome::Failed {
            side: Side::Engine,
            class: ErrorClass::Unavailable,
            message: "it was away".to_owned(),
        },
        6 => failure(Side::Harness),
        _ => Outcome::Cancelled,
    }
}

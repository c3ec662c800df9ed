//! The node's loop: asks for work, renews leases, and owns the sessions it holds.
//!
//! One task owns the table of held sessions. Sessions run as tasks of their own and are
//! only spoken to through their [`Control`]; requests to the server run beside the loop,
//! so that a server that is away holds up nothing.

use crate::NodeError;
use crate::brake::Brake;
use crate::client::{Backoff, ClientError, ServerClient};
use crate::delivery::Courier;
use crate::disk::Disk;
use crate::holder::{Holder, Left};
use crate::lack::Lack;
use crate::metrics::Ends;
use polar_gateway::{EnginePool, Outage};
use polar_session::{Control, Progress, RoomChanges, SessionRunner};
use polar_types::{
    CancelCount, CancelWatch, Epoch, Lease, LeaseRequest, LeaseResponse, NodeInfo, NodeTrouble,
    ReleaseItem, RenewItem, RenewRequest, RenewResponse, SessionId, Stage, TroubleKind,
};
use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// How long the server may hold a request open, for work or for cancelled sessions.
const WAIT_SECONDS: f64 = 20.0;
/// Time between renewals before the server has said how long leases live.
const FIRST_RENEWAL: Duration = Duration::from_secs(5);
/// Renewals that cannot wait come after so long, in one for all that happens meanwhile.
const SOON: Duration = Duration::from_millis(500);
/// Longest that giving a session back may take, and again delivering what it recorded.
const RELEASE_WAIT: Duration = Duration::from_secs(10);

/// A held session, for displays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldSession {
    /// Which.
    pub session_id: SessionId,
    /// Its fencing token.
    pub epoch: Epoch,
    /// Where it stands.
    pub stage: Stage,
    /// What it waits for, in words.
    pub waiting_for: String,
    /// Whether that is an engine that is away.
    pub waits_for_engine: bool,
}

struct Held {
    control: watch::Sender<Control>,
    progress: watch::Receiver<Progress>,
    /// To be released as soon as nothing of it runs any more. Its lease is kept until
    /// then: one that runs out would cost the session an attempt.
    goes_back: bool,
}

impl Held {
    /// Given up; it only has to clear up behind itself.
    fn is_given_up(&self) -> bool {
        *self.control.borrow() == Control::Abandon
    }

    /// Gives it up because its lease is somebody else's by now.
    fn lose(&mut self) {
        self.goes_back = false;
        self.control.send_replace(Control::Abandon);
    }

    /// Whether its lease is still wanted.
    fn is_renewed(&self) -> bool {
        self.goes_back || !self.is_given_up()
    }

    /// How far it is, as a copy: who looks twice while a writer waits would wait for itself.
    fn progress(&self) -> Progress {
        self.progress.borrow().clone()
    }

    fn stage(&self) -> Stage {
        self.progress().stage.unwrap_or(Stage::Prepare)
    }

    fn shown(&self, (session_id, epoch): &Key) -> HeldSession {
        let progress = self.progress();
        HeldSession {
            session_id: session_id.clone(),
            epoch: *epoch,
            stage: progress.stage.unwrap_or(Stage::Prepare),
            waiting_for: progress.waiting_for(),
            waits_for_engine: progress.waits_for_engine(),
        }
    }
}

/// What the node lets others see of itself.
pub(crate) struct Shown {
    pub(crate) held: watch::Sender<Vec<HeldSession>>,
    pub(crate) troubles: watch::Sender<Vec<NodeTrouble>>,
    pub(crate) ends: Arc<Ends>,
}

type Key = (SessionId, Epoch);

type Question<T> = Pin<Box<dyn Future<Output = Result<T, ClientError>> + Send>>;

pub(crate) struct Dispatcher {
    info: NodeInfo,
    client: Arc<ServerClient>,
    courier: Courier,
    runner: SessionRunner,
    shown: watch::Sender<Vec<HeldSession>>,
    held: HashMap<Key, Held>,
    tasks: JoinSet<(Key, Left)>,
    /// What is still to be done for sessions that are no longer held.
    clearing: JoinSet<()>,
    lease_backoff: Backoff,
    brake: Arc<Brake>,
    disk: Disk,
    engines: Arc<EnginePool>,
    outage: watch::Receiver<Option<Outage>>,
    ends: Arc<Ends>,
    troubles: watch::Sender<Vec<NodeTrouble>>,
    renewal: Duration,
    /// Leases named in the renewal that is on its way.
    renewing: Vec<(SessionId, Epoch)>,
    /// A session went on to another stage, which the server shows to people.
    stages: Arc<Notify>,
    /// What the server last said of cancelled sessions.
    cancels: Option<u64>,
    cancels_backoff: Backoff,
    lack: Lack,
    room: RoomChanges,
}

impl Dispatcher {
    pub(crate) fn new(
        info: NodeInfo,
        client: Arc<ServerClient>,
        courier: Courier,
        runner: SessionRunner,
        engines: Arc<EnginePool>,
        disk: Disk,
        shown: Shown,
    ) -> Self {
        let Shown { held: shown, troubles, ends } = shown;
        Self {
            info,
            client,
            courier,
            room: runner.room_changes(),
            runner,
            shown,
            held: HashMap::new(),
            tasks: JoinSet::new(),
            clearing: JoinSet::new(),
            lease_backoff: Backoff::default(),
            brake: Arc::new(Brake::new()),
            disk,
            outage: engines.subscribe(),
            engines,
            ends,
            troubles,
            renewal: FIRST_RENEWAL,
            renewing: Vec::new(),
            stages: Arc::default(),
            cancels: None,
            cancels_backoff: Backoff::default(),
            lack: Lack::default(),
        }
    }

    /// Works until it is told to drain, every session has ended or been given back, and
    /// nothing is left of them to clear. Fails when another node has taken its name; then
    /// all its sessions are given up.
    pub(crate) async fn run(
        &mut self,
        mut draining: watch::Receiver<Option<Duration>>,
    ) -> Result<(), NodeError> {
        let mut ousted = Ok(());
        let mut lease: Option<Question<LeaseResponse>> = None;
        let mut renewal: Option<Question<RenewResponse>> = None;
        let mut cancels: Option<Question<CancelCount>> = None;
        let stages = self.stages.clone();
        let mut renew_at = Instant::now() + self.renewal;
        let mut give_up_at: Option<Instant> = None;
        loop {
            let drains = give_up_at.is_some();
            if drains && self.held.is_empty() && self.clearing.is_empty() {
                return ousted;
            }
            if lease.is_none() && !drains && !self.lack.holds(self.runner.room()) {
                lease = self.ask_for_work();
            }
            if cancels.is_none() && !self.held.is_empty() {
                cancels = Some(self.ask_for_cancels());
            }
            tokio::select! {
                answer = answered(&mut lease) => {
                    lease = None;
                    ousted = ousted.and(self.check_name(&answer));
                    self.take_leases(answer);
                    // The server is to know what sessions wait for.
                    let pause = if self.lack.until().is_some() { SOON } else { self.renewal };
                    renew_at = renew_at.min(Instant::now() + pause);
                }
                answer = answered(&mut renewal) => {
                    renewal = None;
                    ousted = ousted.and(self.check_name(&answer));
                    self.take_renewal(answer);
                }
                answer = answered(&mut cancels) => {
                    cancels = None;
                    if self.take_cancels(answer) {
                        renew_at = renew_at.min(Instant::now() + SOON);
                    }
                }
                Ok(()) = self.outage.changed() => {
                    // The server is to know, and sessions may wait no longer.
                    renew_at = renew_at.min(Instant::now() + SOON);
                }
                () = self.room.changed() => {}
                () = at(self.lack.until()) => self.lack.end(),
                () = stages.notified() => renew_at = renew_at.min(Instant::now() + SOON),
                Some(ended) = self.tasks.join_next(), if !self.tasks.is_empty() => {
                    // Session tasks catch the panics of what they run; see `hold`.
                    if let Ok((key, left)) = ended {
                        self.take_end(key, left);
                    }
                }
                Some(_) = self.clearing.join_next(), if !self.clearing.is_empty() => {}
                () = tokio::time::sleep_until(renew_at) => {
                    // One at a time, as orders are for the leases named in it.
                    let pause = if renewal.is_some() { SOON } else { self.renewal };
                    renew_at = Instant::now() + pause;
                    if renewal.is_none() {
                        renewal = self.ask_for_renewal();
                    }
                }
                grace = drained(&mut draining, drains) => {
                    // Asked for but not taken: such leases run out by themselves.
                    lease = None;
                    give_up_at = Some(Instant::now() + grace);
                    self.give_back(|stage| matches!(stage, Stage::Prepare | Stage::Ready));
                }
                () = at(give_up_at), if drains => {
                    give_up_at = Some(Instant::now() + RELEASE_WAIT);
                    self.courier.stop();
                    self.give_back(|stage| stage != Stage::Deliver);
                }
            }
            if ousted.is_err() && give_up_at.is_none() {
                lease = None;
                give_up_at = Some(Instant::now() + RELEASE_WAIT);
                self.held.values_mut().for_each(Held::lose);
            }
            self.show();
        }
    }

    /// Fails when the server says that the name is another node's, and with it all leases.
    fn check_name<T>(&self, answer: &Result<T, ClientError>) -> Result<(), NodeError> {
        match answer {
            Err(ClientError::Conflict(answer)) => Err(NodeError::NameInUse {
                url: self.client.url().to_owned(),
                answer: answer.clone(),
            }),
            _ => Ok(()),
        }
    }

    /// Asks for as many sessions as there is room for; for none while its engines are away, and
    /// after failures that may be this machine's fault for one at a time, until one goes well.
    fn ask_for_work(&mut self) -> Option<Question<LeaseResponse>> {
        if self.outage.borrow().is_some() || !self.disk.has_room() {
            return None;
        }
        let taken = self.held.len() + self.clearing.len();
        let taken = u32::try_from(taken).unwrap_or(u32::MAX);
        let prepares = self.held.values().any(|held| held.stage() == Stage::Prepare);
        let free = self.info.slots.total().saturating_sub(taken);
        let free = self.brake.room(prepares, free);
        if free == 0 {
            return None;
        }
        let ask = LeaseRequest { node: self.info(), free, wait_seconds: WAIT_SECONDS };
        self.lack.ask(ask.node.room);
        let client = self.client.clone();
        let (pause, brake) = (self.lease_backoff.pause(), self.brake.clone());
        Some(Box::pin(async move {
            tokio::time::sleep(pause).await;
            brake.paused().await;
            client.lease(&ask).await
        }))
    }

    fn take_leases(&mut self, answer: Result<LeaseResponse, ClientError>) {
        match answer {
            Ok(answer) => {
                self.lease_backoff.reset();
                if answer.ttl_seconds.is_finite() && answer.ttl_seconds > 0.0 {
                    self.renewal = Duration::from_secs_f64(answer.ttl_seconds / 3.0);
                }
                self.lack.answer(&answer);
                for lease in answer.leases {
                    self.start(lease);
                }
            }
            Err(error) => {
                self.lease_backoff.fail();
                tracing::warn!(%error, "no work: the server did not answer");
            }
        }
    }

    fn start(&mut self, lease: Lease) {
        let key = (lease.session_id.clone(), lease.epoch);
        if self.held.contains_key(&key) {
            return;
        }
        // A session handed out anew is no longer the one this node may still hold.
        for ((session, _), held) in &mut self.held {
            if *session == lease.session_id {
                held.lose();
            }
        }
        tracing::info!(session = %lease.session_id, epoch = %lease.epoch, "leased");
        let (control, orders) = watch::channel(Control::Go);
        let (sender, progress) = watch::channel(Progress::in_stage(Stage::Prepare, "its turn"));
        let holder = Holder {
            runner: self.runner.clone(),
            courier: self.courier.clone(),
            sessions: self.disk.folder().to_owned(),
            node_id: self.info.node_id.clone(),
            brake: self.brake.clone(),
            ends: self.ends.clone(),
        };
        let room = self.runner.reserve(&lease);
        let stages = tell_stages(progress.clone(), self.stages.clone());
        self.held.insert(key.clone(), Held { control, progress, goes_back: false });
        self.tasks.spawn(async move {
            tokio::select! {
                left = holder.hold(lease, room, orders, sender) => (key, left),
                never = stages => match never {},
            }
        });
    }

    fn take_end(&mut self, key: Key, left: Left) {
        let goes_back = self.held.remove(&key).is_some_and(|held| held.goes_back);
        let client = self.client.clone();
        let (session_id, epoch) = key;
        let item = ReleaseItem { session_id, epoch };
        match left {
            Left::Settled { clearing } => {
                self.clearing.spawn(clearing);
            }
            Left::Failed(reason) => {
                self.clearing.spawn(async move {
                    let reason = format!("the node is out of order: {reason}");
                    release(&client, item, &reason, true).await;
                });
            }
            Left::GivenUp(session) if goes_back => {
                self.clearing.spawn(async move {
                    // Without it the calls wait for the next start: told under a lease
                    // that lives, they would be taken for the session's result.
                    if release(&client, item, "the node shuts down", false).await {
                        let reason = "the node shut down and gave the session back; its calls \
                                      up to then are kept";
                        session.keep_calls(reason, Some(RELEASE_WAIT)).await;
                    }
                });
            }
            Left::GivenUp(session) => {
                self.clearing.spawn(async move {
                    let reason = "the node lost the lease while the session ran; its calls up to \
                                  then are kept";
                    session.keep_calls(reason, None).await;
                });
            }
            Left::NotStarted => {
                self.clearing.spawn(async move {
                    release(&client, item, "the node's disk is full or broken", true).await;
                });
            }
        }
    }

    /// Asks to be told when the server wants sessions to end.
    fn ask_for_cancels(&self) -> Question<CancelCount> {
        let watch = CancelWatch { known: self.cancels, wait_seconds: WAIT_SECONDS };
        let client = self.client.clone();
        let pause = self.cancels_backoff.pause();
        Box::pin(async move {
            tokio::time::sleep(pause).await;
            client.cancels(&watch).await
        })
    }

    /// Whether sessions were cancelled that this node may hold.
    fn take_cancels(&mut self, answer: Result<CancelCount, ClientError>) -> bool {
        match answer {
            Ok(CancelCount { count }) => {
                self.cancels_backoff.reset();
                self.cancels.replace(count) != Some(count)
            }
            // The next renewal tells.
            Err(error) => {
                self.cancels_backoff.fail();
                tracing::debug!(%error, "not told of cancelled sessions");
                false
            }
        }
    }

    fn ask_for_renewal(&mut self) -> Option<Question<RenewResponse>> {
        let renewed = self.held.iter().filter(|(_, held)| held.is_renewed());
        let items: Vec<_> = renewed
            .map(|((session_id, epoch), held)| {
                let progress = held.progress();
                RenewItem {
                    session_id: session_id.clone(),
                    epoch: *epoch,
                    stage: progress.stage.unwrap_or(Stage::Prepare),
                    waiting_for: Some(progress.waiting_for()),
                }
            })
            .collect();
        let node = self.info();
        // Otherwise the server hears of it with its requests for work.
        if items.is_empty() && node.troubles.is_empty() {
            return None;
        }
        self.renewing = items.iter().map(|item| (item.session_id.clone(), item.epoch)).collect();
        let ask = RenewRequest { node, items };
        let client = self.client.clone();
        let patience = self.renewal.max(Duration::from_secs(1));
        Some(Box::pin(async move { client.renew(&ask, patience).await }))
    }

    fn take_renewal(&mut self, answer: Result<RenewResponse, ClientError>) {
        match answer {
            Ok(answer) => {
                self.order(&answer.cancelled, Control::Cancel);
                self.order(&answer.lost, Control::Abandon);
            }
            // Sessions go on: only the server can say that a lease is lost.
            Err(error) => tracing::warn!(%error, "leases not renewed"),
        }
    }

    /// Passes an order on to the leases that were named when it was asked for. One that
    /// came since, for the same session under a newer epoch, is not meant.
    fn order(&mut self, sessions: &[SessionId], order: Control) {
        for ((session, epoch), held) in &mut self.held {
            let asked = self.renewing.iter().any(|(s, e)| s == session && e == epoch);
            if !asked || !sessions.contains(session) || !held.is_renewed() {
                continue;
            }
            tracing::warn!(%session, %epoch, ?order, "told by the server");
            match order {
                Control::Abandon => held.lose(),
                // What goes back ends as cancelled when the server has it.
                _ if held.is_given_up() => {}
                _ => {
                    held.control.send_replace(order);
                }
            }
        }
    }

    /// Gives up the sessions in such stages, to be released when they have stopped.
    fn give_back(&mut self, stages: impl Fn(Stage) -> bool) {
        for held in self.held.values_mut() {
            if stages(held.stage()) && !held.is_given_up() {
                held.goes_back = true;
                held.control.send_replace(Control::Abandon);
            }
        }
    }

    fn info(&self) -> NodeInfo {
        let mut per_stage: BTreeMap<String, u32> = BTreeMap::new();
        for held in self.held.values() {
            let stage = polar_types::SessionStatus::from(held.stage());
            *per_stage.entry(stage.as_str().to_owned()).or_default() += 1;
        }
        NodeInfo {
            room: self.runner.room(),
            held: per_stage,
            troubles: self.troubles(),
            engines: self.engines.status(),
            engine_errors: self.engines.errors(),
            ..self.info.clone()
        }
    }

    /// What keeps it from beginning sessions.
    fn troubles(&self) -> Vec<NodeTrouble> {
        let outage = self.outage.borrow().clone();
        let waiting = self.held.values().filter(|held| held.progress().waits_for_engine());
        let engine = outage.map(|outage| NodeTrouble {
            kind: TroubleKind::Engine,
            message: outage.reason,
            since: format!("{:.0}", outage.since),
            waiting: u32::try_from(waiting.count()).unwrap_or(u32::MAX),
        });
        let others = self.brake.trouble().into_iter().chain(self.disk.trouble());
        engine.into_iter().chain(others).collect()
    }

    fn show(&self) {
        let mut sessions: Vec<_> = self.held.iter().map(|(key, held)| held.shown(key)).collect();
        sessions.sort_by(|a, b| (&a.session_id, a.epoch).cmp(&(&b.session_id, b.epoch)));
        self.troubles.send_replace(self.troubles());
        self.shown.send_if_modified(|shown| {
            let changed = *shown != sessions;
            *shown = sessions;
            changed
        });
    }
}

/// Tells when a session goes on to another stage, for as long as it is polled.
async fn tell_stages(mut progress: watch::Receiver<Progress>, stages: Arc<Notify>) -> Infallible {
    let mut told = progress.borrow_and_update().stage;
    while progress.changed().await.is_ok() {
        let stage = progress.borrow_and_update().stage;
        if stage != told {
            told = stage;
            stages.notify_one();
        }
    }
    std::future::pending().await
}

/// Gives a session back and says whether the server knows. Where it does not, the lease
/// runs out instead.
async fn release(client: &ServerClient, item: ReleaseItem, reason: &str, failed: bool) -> bool {
    let session = item.session_id.clone();
    match tokio::time::timeout(RELEASE_WAIT, client.release(vec![item], reason, failed)).await {
        Ok(Ok(_)) => return true,
        Ok(Err(error)) => {
            tracing::warn!(%session, %error, "not released; the lease will run out");
        }
        Err(_) => tracing::warn!(%session, "not released in time; the lease will run out"),
    }
    false
}

/// The answer to a question; never, when none is asked.
async fn answered<T>(question: &mut Option<Question<T>>) -> Result<T, ClientError> {
    match question {
        Some(question) => question.await,
        None => std::future::pending().await,
    }
}

async fn at(when: Option<Instant>) {
    match when {
        Some(when) => tokio::time::sleep_until(when).await,
        None => std::future::pending().await,
    }
}

/// How long running sessions may go on; at once when the node was dropped. Once that has
/// been said, returns when something else is.
async fn drained(draining: &mut watch::Receiver<Option<Duration>>, drains: bool) -> Duration {
    if drains && draining.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
    match draining.wait_for(Option::is_some).await {
        Ok(grace) => grace.unwrap_or_default(),
        Err(_) => Duration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn who_shows_a_session_does_not_wait_for_who_changes_it() {
        let (progress, seen) = watch::channel(Progress::default());
        let held =
            Held { control: watch::channel(Control::Go).0, progress: seen, goes_back: false };
        let key: Key = ("a".parse().unwrap(), Epoch(1));
        let (done, is_done) = mpsc::channel();
        let changed = done.clone();
        std::thread::spawn(move || {
            for _ in 0..50_000 {
                progress.send_replace(Progress::in_stage(Stage::Run, "its agent"));
            }
            let _ = changed.send(());
        });
        std::thread::spawn(move || {
            for _ in 0..50_000 {
                held.shown(&key);
            }
            let _ = done.send(());
        });
        for _ in 0..2 {
            is_done.recv_timeout(Duration::from_secs(60)).expect("both wait for each other");
        }
    }
}

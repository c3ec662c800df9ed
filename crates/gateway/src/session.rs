//! An open session: its journal, its secret, and the calls that run now.

use crate::bodies::Bodies;
use crate::call::OpenCall;
use crate::counts::Counts;
use crate::pool::{EnginePool, Place};
use crate::prompt::SessionPrompts;
use crate::{Gateway, GatewayError, Outage};
use axum::http::HeaderMap;
use polar_convo::{Normaliser, ResponsesHistory, TurnMemory};
use polar_record::{CallRecord, ENGINES, JournalError, JournalWriter, SessionHeader};
use polar_types::{ErrorClass, HistoryPolicy, SamplingPins, SessionId};
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How to open a session.
#[derive(Debug, Clone)]
pub struct SessionOptions {
    /// Goes to the front of the journal; its `engine` is filled in by the gateway.
    pub header: SessionHeader,
    /// File the calls are written to; made new.
    pub journal: PathBuf,
    /// Replace what the harness sends.
    pub sampling: SamplingPins,
    /// What the engine gets of the model's earlier turns.
    pub history: HistoryPolicy,
}

/// What a session has done so far, for progress displays.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Activity {
    /// Calls in the journal.
    pub calls: u32,
    /// Tokens sampled in them.
    pub sampled_tokens: u64,
    /// Calls running now.
    pub running: u32,
    /// Those of them that wait for an engine that is away.
    pub held: u32,
}

/// A call's state, shared between the connection that serves it and the session that
/// may close under it. `None` once its record is written.
pub(crate) type SharedCall = Arc<Mutex<Option<OpenCall>>>;

pub(crate) struct Session {
    secret: String,
    pub(crate) pins: SamplingPins,
    pub(crate) history: HistoryPolicy,
    /// `None` once sealed. A std mutex: the critical section is one `write(2)`.
    journal: Mutex<Option<JournalWriter>>,
    running: Mutex<HashMap<u64, SharedCall>>,
    next_call: AtomicU64,
    /// When the harness asked for the first time.
    first_call: watch::Sender<Option<Instant>>,
    closing: AtomicBool,
    /// Request headers by which the harness's rules tell who made a call.
    evidence: Vec<String>,
    /// Takes volatile text out of prompts.
    pub(crate) normaliser: Normaliser,
    /// Ends the streams of running calls when the session closes.
    pub(crate) closed: CancellationToken,
    calls: AtomicU32,
    sampled_tokens: AtomicU64,
    held: AtomicU32,
    /// Of all sessions.
    counts: Arc<Counts>,
    /// What Responses requests may refer to.
    pub(crate) responses: Mutex<ResponsesHistory>,
    /// What the model has said, to know it again in a history.
    pub(crate) turns: Mutex<TurnMemory>,
    /// In token mode.
    pub(crate) prompts: Option<Arc<SessionPrompts>>,
    id: SessionId,
    pub(crate) bodies: Bodies,
    /// The engine that holds its prefix.
    pub(crate) place: Place,
}

impl Session {
    pub(crate) fn open(
        options: SessionOptions,
        engines: &EnginePool,
        counts: Arc<Counts>,
    ) -> Result<Self, GatewayError> {
        let engine = engines.founder();
        let mut header = options.header;
        header.engine = described(engines);
        let evidence = header.rules.headers();
        let normaliser = Normaliser::new(&header.rules.normalise)?;
        let stand_ins = header.rules.stand_ins.iter().map(|rule| rule.tool.clone()).collect();
        let journal = JournalWriter::create(&options.journal, &header)?;
        Ok(Self {
            secret: new_secret()?,
            pins: options.sampling,
            history: options.history,
            evidence,
            normaliser,
            journal: Mutex::new(Some(journal)),
            running: Mutex::default(),
            next_call: AtomicU64::new(0),
            first_call: watch::Sender::new(None),
            closing: AtomicBool::new(false),
            closed: CancellationToken::new(),
            calls: AtomicU32::new(0),
            sampled_tokens: AtomicU64::new(0),
            held: AtomicU32::new(0),
            counts,
            responses: Mutex::default(),
            turns: Mutex::new(
                TurnMemory::new(stand_ins).keeping_cut_calls(engine.token_mode().is_some()),
            ),
            prompts: engine
                .token_mode()
                .map(|mode| Arc::new(SessionPrompts::new(Arc::clone(mode), options.history))),
            id: header.session_id,
            bodies: Bodies::default(),
            place: Place::default(),
        })
    }

    pub(crate) fn secret(&self) -> &str {
        &self.secret
    }

    pub(crate) fn id(&self) -> &SessionId {
        &self.id
    }

    /// What a request's headers say about who made it.
    pub(crate) fn evidence(&self, headers: &HeaderMap) -> BTreeMap<String, String> {
        let value_of = |name: &String| {
            let value = headers.get(name.as_str())?;
            Some((name.clone(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
        };
        self.evidence.iter().filter_map(value_of).collect()
    }

    /// Registers a call, or says why it may not start. The key ends it again.
    pub(crate) fn begin(
        &self,
        call: OpenCall,
        limit: usize,
    ) -> Result<(u64, SharedCall), ErrorClass> {
        let mut running = lock(&self.running);
        // Read under the lock that `close` takes, so that no call slips in after it.
        if self.closing.load(Ordering::Acquire) {
            return Err(ErrorClass::Cancelled);
        }
        if running.len() >= limit {
            return Err(ErrorClass::RateLimited);
        }
        let key = self.next_call.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::new(Mutex::new(Some(call)));
        running.insert(key, shared.clone());
        self.first_call.send_if_modified(|first| match first {
            Some(_) => false,
            None => first.replace(Instant::now()).is_none(),
        });
        Ok((key, shared))
    }

    pub(crate) fn end(&self, key: u64) {
        lock(&self.running).remove(&key);
    }

    /// Counts a call as waiting for the engine until what comes back is dropped.
    pub(crate) fn hold(self: &Arc<Self>) -> HeldCall {
        self.held.fetch_add(1, Ordering::Relaxed);
        HeldCall(Arc::clone(self))
    }

    /// Writes a call's record. Its position in the journal comes back.
    pub(crate) fn append(&self, record: &CallRecord) -> Result<u32, NotJournalled> {
        let mut journal = lock(&self.journal);
        let index = journal.as_mut().ok_or(NotJournalled::Sealed)?.append_call(record)?;
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.counts.note(&record.meta);
        self.sampled_tokens.fetch_add(record.meta.sampled_tokens, Ordering::Relaxed);
        Ok(index)
    }

    /// Notes whether the harness got the whole reply. A sealed journal is left as it is:
    /// closing has already said that the call was not delivered.
    pub(crate) fn note_delivery(&self, index: u32, delivered: bool) {
        if let Some(journal) = lock(&self.journal).as_mut()
            && let Err(error) = journal.append_delivery(index, delivered)
        {
            tracing::error!(%error, index, "delivery mark not written");
        }
    }

    fn close(&self) -> Result<(), NotJournalled> {
        let leftover: Vec<SharedCall> = {
            let mut running = lock(&self.running);
            self.closing.store(true, Ordering::Release);
            running.drain().map(|(_, call)| call).collect()
        };
        self.closed.cancel();
        EnginePool::give_up(&self.place);
        for call in leftover {
            if let Some(call) = lock(&call).take() {
                let record = call.into_cancelled_record("the session was closed");
                let index = self.append(&record)?;
                self.note_delivery(index, false);
            }
        }
        match lock(&self.journal).take() {
            Some(journal) => Ok(journal.seal()?),
            None => Ok(()),
        }
    }
}

/// A call that waits for the engine.
pub(crate) struct HeldCall(Arc<Session>);

impl Drop for HeldCall {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Why a call has no record.
#[derive(Debug, thiserror::Error)]
pub enum NotJournalled {
    /// The session was closed before the call ended.
    #[error("the session's journal is sealed")]
    Sealed,
    /// The journal could not be written.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// An open session, as its owner holds it. Dropping it leaves the session open.
#[derive(Clone)]
pub struct SessionHandle {
    gateway: Arc<Gateway>,
    session: Arc<Session>,
}

impl SessionHandle {
    pub(crate) fn new(gateway: Arc<Gateway>, session: Arc<Session>) -> Self {
        Self { gateway, session }
    }

    /// The session's secret: the API key of its harness and the `/s/<secret>` path.
    pub fn secret(&self) -> &str {
        self.session.secret()
    }

    /// What it has done so far.
    pub fn activity(&self) -> Activity {
        Activity {
            calls: self.session.calls.load(Ordering::Relaxed),
            sampled_tokens: self.session.sampled_tokens.load(Ordering::Relaxed),
            running: u32::try_from(lock(&self.session.running).len()).unwrap_or(u32::MAX),
            held: self.session.held.load(Ordering::Relaxed),
        }
    }

    /// When its first call came in; none yet when absent.
    pub fn first_call_at(&self) -> Option<Instant> {
        *self.session.first_call.borrow()
    }

    /// Returns when the first call has come in.
    pub async fn called(&self) {
        // The session holds the sender, and this the session.
        let _ = self.session.first_call.subscribe().wait_for(Option::is_some).await;
    }

    /// The outage of its engines, if all are away.
    pub fn outage(&self) -> Option<Outage> {
        self.gateway.engines().outage()
    }

    /// Makes the secret invalid, ends running calls as undelivered and seals the journal,
    /// which is complete when this returns. Safe to call again.
    pub fn close(&self) -> Result<(), GatewayError> {
        self.gateway.forget(self.session.secret());
        Ok(self.session.close()?)
    }
}

/// What a journal says of the engines that there are: what the first is, which all are to a session,
/// and where there are several, the URL of each. Calls say which they were at.
fn described(engines: &EnginePool) -> serde_json::Value {
    let mut engine = serde_json::to_value(engines.info()).unwrap_or_default();
    if engines.is_many()
        && let Some(fields) = engine.as_object_mut()
    {
        let urls = engines.engines().iter().map(|engine| engine.info().url.clone()).collect();
        fields.insert(ENGINES.to_owned(), urls);
    }
    engine
}

/// 256 random bits. The prefix makes a leaked one easy to find and to scan for.
fn new_secret() -> Result<String, GatewayError> {
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes).map_err(|error| GatewayError::Random(error.to_string()))?;
    Ok(format!("polar-{}", hex::encode(bytes)))
}

/// A panic while a lock is held ends one request; the state behind it stays usable,
/// since every critical section here leaves it whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

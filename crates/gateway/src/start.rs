//! From a call to its generation: the prompt, an engine that takes it, and its beginning.
//!
//! An error of an engine at the beginning means that nothing was sampled, so that the call goes to
//! another engine, or waits for one. What has begun is never begun a second time.

use crate::outage::Patience;
use crate::pool::{EnginePool, Member, Placed, UnderWay};
use crate::prompt::Prompt;
use crate::reply::engine_failure;
use crate::session::{Session, SharedCall, lock};
use futures_util::StreamExt;
use polar_convo::ApiError;
use polar_engine::{EngineError, EngineStream, GenerateRequest};
use polar_types::{ErrorClass, SessionId};
use serde_json::Value;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How long a session waits for new weights at its engine before it goes to another one, whose
/// prefixes it has to build up. Most updates take tenths of seconds.
const WEIGHTS_PATIENCE: Duration = Duration::from_secs(2);
/// How often it looks then whether another engine takes calls.
const LOOK: Duration = Duration::from_millis(250);

/// All that it takes to begin a generation.
pub(crate) struct Start {
    pub(crate) engines: Arc<EnginePool>,
    pub(crate) session: Arc<Session>,
    pub(crate) call: SharedCall,
    /// Where the prompt is left for when the call is answered.
    pub(crate) prompt: Arc<OnceLock<Prompt>>,
    pub(crate) asked: GenerateRequest,
    /// In token mode, messages and tools to make the prompt of.
    pub(crate) to_plan: Option<(Vec<Value>, Vec<Value>)>,
    pub(crate) patience: Patience,
}

impl Start {
    /// Begins the generation, as soon as there is an engine that takes it.
    pub(crate) async fn run(mut self) -> Result<EngineStream, ApiError> {
        let to_plan = self.to_plan.take();
        if let (Some(prompts), Some((messages, tools))) = (&self.session.prompts, to_plan) {
            let planned = prompts.plan(&self.asked.request, messages, tools).await?;
            self.prompt.get_or_init(|| planned);
            if let Some(call) = lock(&self.call).as_mut() {
                call.prompted_by(&self.prompt);
            }
        }
        loop {
            if self.patience.begin(&self.engines) {
                self.wait().await?;
            }
            let member = self.engine().await?;
            let under_way = member.begin();
            match self.begin(&member).await {
                Ok(stream) => {
                    member.note_success();
                    return Ok(watched(stream, under_way, self.session.id().clone()));
                }
                Err(error) => {
                    drop(under_way);
                    let is_away = member.watch.is_away_after(&error, self.session.id()).await;
                    let may_go_on = self.engines.has_other(&member) || !self.patience.is_over();
                    if !is_away || !may_go_on {
                        return Err(engine_failure(&error));
                    }
                }
            }
        }
    }

    /// Holds the call while no engine takes it. Its record says so however it ends.
    async fn wait(&mut self) -> Result<(), ApiError> {
        let note = |start: &Self, is_over: bool| {
            if let Some(call) = lock(&start.call).as_mut() {
                call.waited_for_engine(&start.patience, is_over);
            }
        };
        note(self, false);
        let held = self.session.hold();
        let waited = self.patience.wait(&self.engines).await;
        drop(held);
        note(self, waited.is_ok());
        waited
    }

    /// The session's engine, or the one that it moves to.
    async fn engine(&self) -> Result<Arc<Member>, ApiError> {
        let place = &self.session.place;
        let mut member = self.noted(self.engines.place(place))?;
        if self.engines.is_many() && member.is_held() && self.is_left_for_weights(&member).await {
            member = self.noted(self.engines.move_on(place))?;
        }
        Ok(member)
    }

    /// Waits while the engine gets new weights; true where another one takes calls by then.
    async fn is_left_for_weights(&self, member: &Arc<Member>) -> bool {
        let Some(weights) = member.engine.weights() else { return false };
        let other = async {
            tokio::time::sleep(WEIGHTS_PATIENCE).await;
            while !self.engines.has_other(member) {
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::select! {
            () = weights.released() => false,
            () = other => true,
        }
    }

    /// Says in the call's record where it is asked.
    fn noted(&self, placed: Option<Placed>) -> Result<Arc<Member>, ApiError> {
        let none = || ApiError::new(ErrorClass::Unavailable, "this node has no engine");
        let Placed { member, left } = placed.ok_or_else(none)?;
        if self.engines.is_many()
            && let Some(call) = lock(&self.call).as_mut()
        {
            call.asked_of(member.engine.info());
            if let Some(left) = &left {
                call.moved(left);
            }
        }
        Ok(member)
    }

    async fn begin(&self, member: &Arc<Member>) -> Result<EngineStream, EngineError> {
        let begun = self.begin_at(member);
        if !self.engines.is_many() {
            return begun.await;
        }
        // Nobody has seen anything of it yet, so that it need not wait for an engine that hangs.
        tokio::select! {
            begun = begun => begun,
            () = self.engines.is_replaced(member) => Err(EngineError::new(
                ErrorClass::Unavailable,
                "the engine went away before it answered",
            )),
        }
    }

    async fn begin_at(&self, member: &Member) -> Result<EngineStream, EngineError> {
        let Self { session, prompt, asked, .. } = self;
        match (&session.prompts, member.engine.token_mode(), prompt.get()) {
            (Some(_), Some(mode), Some(Prompt::Ids { plan, pictures })) => {
                let (ids, pictures) = (plan.ids.as_slice().into(), pictures.clone());
                let id = Some(session.id().to_string());
                mode.generate(ids, pictures, asked.clone(), id).await
            }
            _ => member.engine.generate(asked.clone()).await,
        }
    }
}

/// The same stream, of which a failure is noted, and which is under way until it is dropped.
fn watched(stream: EngineStream, under_way: UnderWay, session: SessionId) -> EngineStream {
    Box::pin(stream.inspect(move |event| {
        if let Err(error) = event {
            under_way.member().watch.note_broken(error, &session);
        }
    }))
}

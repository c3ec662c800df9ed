//! The last stage: what the agent changed, and what it is worth.
//!
//! ```text
//! agent's sandbox ──(changed files, files named)──► grader's sandbox ◄── tests and keys
//! ```
//!
//! A grader that fails costs the reward and nothing else: the trajectory is kept and
//! the report says why there is no number. A sandbox that fails meanwhile is another
//! matter: the attempt fails, and may be made anew. What the agent can do to its grader must not
//! be a way to have none where there would be 0. What is found is kept on the node, where no
//! sandbox reaches; nothing here reads a result that a sandbox could have had before.

mod answer;
mod artefacts;
mod asked_for;
mod command;
mod composite;
mod fresh;
mod harbor;
mod labels;
mod outside;
mod parts;
mod python;
pub(crate) mod regrade;
mod reports;
mod swebench;
mod tests;

use crate::attempt::Attempt;
use crate::failure::Stop;
use crate::maker::Deadline;
use command::Command;
use parts::Calls;
use polar_record::RecordedSession;
use polar_sandbox::Sandbox;
use polar_types::{
    EvaluatorSpec, GradeInfo, GradingSandbox, HackLabel, OnHack, Outcome, PartRewards,
    RewardSource, Side, Stage, TestCounts,
};
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// What grading found.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Grade {
    pub(crate) info: Option<GradeInfo>,
    pub(crate) labels: Vec<HackLabel>,
}

impl Grade {
    pub(crate) fn reward(&self) -> Option<f64> {
        self.info.as_ref()?.reward
    }

    /// Why there is no reward although one was asked for.
    pub(crate) fn error(&self) -> Option<String> {
        self.info.as_ref()?.error.clone()
    }

    /// What to know about the reward there is.
    pub(crate) fn note(&self) -> Option<String> {
        self.info.as_ref()?.note.clone()
    }
}

/// What one evaluator found.
#[derive(Debug, Clone, Default, PartialEq)]
struct Verdict {
    reward: Option<f64>,
    error: Option<String>,
    note: Option<String>,
    rewards: PartRewards,
    tests: Option<TestCounts>,
    parts: Vec<GradeInfo>,
    labels: Vec<HackLabel>,
}

impl Verdict {
    fn failed(error: impl Into<String>) -> Self {
        Self { error: Some(error.into()), ..Self::default() }
    }

    fn of(reward: f64) -> Self {
        Self { reward: Some(reward), ..Self::default() }
    }

    /// The work failed, for a reason that is worth knowing.
    fn zero(why: impl std::fmt::Display) -> Self {
        Self { note: Some(format!("reward 0: {why}")), ..Self::of(0.0) }
    }

    fn info(self, evaluator: &EvaluatorSpec, sandbox: GradingSandbox) -> GradeInfo {
        GradeInfo {
            evaluator: evaluator.kind().to_owned(),
            version: version(evaluator),
            sandbox,
            reward: self.reward,
            error: self.error,
            note: self.note,
            rewards: Some(self.rewards).filter(|rewards| !rewards.is_empty()),
            tests: self.tests,
            parts: self.parts,
        }
    }
}

/// Raised where the same work may be graded otherwise than before.
fn version(evaluator: &EvaluatorSpec) -> String {
    let rules = match evaluator {
        EvaluatorSpec::None {}
        | EvaluatorSpec::Command { .. }
        | EvaluatorSpec::Tests(_)
        | EvaluatorSpec::Harbor(_)
        | EvaluatorSpec::Swebench(_)
        | EvaluatorSpec::Judge(_)
        | EvaluatorSpec::Http(_)
        | EvaluatorSpec::Python(_)
        | EvaluatorSpec::WeightedSum { .. }
        | EvaluatorSpec::All { .. }
        | EvaluatorSpec::First { .. } => 1,
    };
    format!("{}/{rules}+polar.{}", evaluator.kind(), env!("CARGO_PKG_VERSION"))
}

/// Where an evaluator's commands run, and until when.
struct Place<'a> {
    sandbox: &'a dyn Sandbox,
    deadline: Instant,
    /// The budget that the deadline is made of.
    seconds: f64,
    kind: GradingSandbox,
    /// What the session did, for evaluators that look at it.
    calls: Calls,
    /// Numbers the logs.
    commands: AtomicU32,
}

impl Place<'_> {
    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    fn next_command(&self) -> u32 {
        self.commands.fetch_add(1, Ordering::Relaxed)
    }
}

impl Attempt {
    /// Keeps the diff, then evaluates. Each has the grading budget for itself; a second
    /// sandbox is made within that of preparing.
    pub(crate) async fn grade(&mut self) -> Result<Grade, Stop> {
        // First, so that what the grader writes is not taken for the agent's work.
        self.waits(Stage::Grade, "the diff of its work folder");
        let kept = self.keep_diff().await?;
        let task = &self.lease.task;
        if matches!(task.evaluator, EvaluatorSpec::None {}) {
            self.keep_work(kept).await?;
            return Ok(Grade::default());
        }
        let mut labels = self.asked_for().await;
        let verdict = match self.bring_work(kept, &mut labels).await? {
            Ok(()) => self.evaluate_work().await?,
            Err(verdict) => verdict,
        };
        Ok(self.conclude(verdict, labels))
    }

    /// Labels of what its agent asked for, as far as the journal can be read.
    async fn asked_for(&self) -> Vec<HackLabel> {
        let network = self.sandbox.as_ref().map(|sandbox| sandbox.network_use());
        let journal = self.folder.journal();
        let look = move || {
            let mut labels = Vec::new();
            if let Ok(session) = RecordedSession::read(&journal) {
                let delivered = session.calls().iter().filter(|call| call.counts_as_delivered());
                for call in delivered {
                    let (id, reply) = (call.meta.call_id.as_str(), session.reply(call));
                    asked_for::of_reply(id, &reply, &mut labels);
                }
            }
            asked_for::of_network(&network.unwrap_or_default(), &mut labels);
            labels
        };
        // What cannot be read the report says.
        tokio::task::spawn_blocking(look).await.unwrap_or_default()
    }

    fn conclude(&self, mut verdict: Verdict, mut labels: Vec<HackLabel>) -> Grade {
        let task = &self.lease.task;
        labels.append(&mut verdict.labels);
        if let (OnHack::Zero, Some(label)) = (task.grading.on_hack, labels.first())
            && verdict.reward.is_some_and(|reward| reward > 0.0)
        {
            let seen = label.pattern.words();
            verdict = Verdict {
                reward: Some(0.0),
                rewards: PartRewards::default(),
                note: Some(format!("reward 0 (`grading.on_hack: zero`): {seen}, {}", label.place)),
                ..verdict
            };
        }
        Grade { info: Some(verdict.info(&task.evaluator, task.grading_sandbox())), labels }
    }

    /// Evaluates what is in place, after the steps that only graders see.
    async fn evaluate_work(&self) -> Result<Verdict, Stop> {
        let task = &self.lease.task;
        let sandbox = match &self.grader {
            Some(grader) => grader.as_ref(),
            None => self.open_sandbox()?,
        };
        self.waits(Stage::Grade, "the steps of grading.setup");
        let deadline = Deadline::of_preparing(task.budgets.prepare_seconds);
        match self.set_up(deadline, sandbox, &task.grading.setup).await {
            Ok(()) => {}
            // The agent's work is there already, and may be why.
            Err(Stop::Ended(Outcome::Failed { side: Side::Sandbox, class, message }))
                if !class.is_retryable() =>
            {
                return Ok(Verdict::zero(format!("grading.setup failed on this work: {message}")));
            }
            Err(stop) => return Err(stop),
        }
        let calls = match parts::may_be_told(&task.evaluator) {
            true => self.calls().await,
            false => Calls::default(),
        };
        self.waits(Stage::Grade, "its evaluator");
        let seconds = task.budgets.grade_seconds;
        let place = Place {
            sandbox,
            deadline: Instant::now() + Duration::from_secs_f64(seconds),
            seconds,
            kind: task.grading_sandbox(),
            calls,
            commands: AtomicU32::new(0),
        };
        self.evaluate(&place, &task.evaluator).await
    }

    /// What an evaluator says of the work that is in place.
    fn evaluate<'a>(
        &'a self,
        place: &'a Place<'_>,
        evaluator: &'a EvaluatorSpec,
    ) -> Pin<Box<dyn Future<Output = Result<Verdict, Stop>> + Send + 'a>> {
        Box::pin(async move {
            match evaluator {
                EvaluatorSpec::None {} => Ok(Verdict::default()),
                EvaluatorSpec::Command { command, workdir, env, reward } => {
                    let env = &self.with_agent_exit_code(env);
                    let command = Command { command, workdir: workdir.as_deref(), env };
                    match reward {
                        RewardSource::Report => self.evaluate_by_report(place, command).await,
                        _ => self.evaluate_command(place, command, *reward).await,
                    }
                }
                EvaluatorSpec::Tests(tests) => self.evaluate_tests(place, tests).await,
                EvaluatorSpec::Harbor(harbor) => self.evaluate_harbor(place, harbor).await,
                EvaluatorSpec::Swebench(instance) => self.evaluate_swebench(place, instance).await,
                EvaluatorSpec::Judge(judge) => self.evaluate_by_judge(place, judge).await,
                EvaluatorSpec::Http(http) => self.evaluate_by_http(place, http).await,
                EvaluatorSpec::Python(python) => self.evaluate_by_python(place, python).await,
                EvaluatorSpec::WeightedSum { of } => self.evaluate_sum(place, of).await,
                EvaluatorSpec::All { of } => self.evaluate_all(place, of).await,
                EvaluatorSpec::First { of } => self.evaluate_first(place, of).await,
            }
        })
    }
}

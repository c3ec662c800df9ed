//! `polar verify`: whether training data is what was sampled, and what it would mean if not.

use crate::args::Verify;
use crate::display::counted;
use crate::engines;
use crate::evidence::{Evidence, Sources};
use crate::rescoring::{self, Rescored};
use anyhow::{Result, bail};
use polar_record::RecordedSession;
use polar_trajectory::{
    BuildOptions, FingerprintCounts, Violation, build, unroll, verify_alone, verify_fingerprints,
};
use polar_types::{Trajectory, TrajectoryStrategy};
use serde::Serialize;
use serde_json::json;
use std::io::Write as _;

pub(crate) async fn verify(args: Verify) -> Result<()> {
    let mut sources = Sources::of(&args.targets, args.server).await?;
    let mut rescoring = match args.rescore {
        Some(share) => Some(Rescored::new(engines::connect_engine(&args.engine).await?, share)?),
        None => None,
    };
    let mut checked = Vec::new();
    for source in std::mem::take(&mut sources.sources) {
        let evidence = sources.load(source).await?;
        let session = Checked::of(&evidence);
        if !args.json {
            write!(std::io::stdout().lock(), "{}", session.lines())?;
        }
        if let Some(rescored) = &mut rescoring {
            rescored.add(&evidence, &training_data(&evidence)).await?;
        }
        checked.push(session);
    }
    let rescored = rescoring.map(Rescored::finish);
    print_summary(&checked, rescored.as_ref(), args.json)?;
    let violated = checked.iter().filter(|session| session.violation.is_some()).count();
    if violated > 0 {
        bail!("{violated} of {} sessions are not what was sampled", checked.len());
    }
    match rescored.and_then(|rescored| rescored.above(args.max_delta)) {
        Some(most) => bail!(
            "a logprob is {most:.6} off, which is above --max-delta: the engine has other weights, or \
             a trace another context"
        ),
        None => Ok(()),
    }
}

fn print_summary(
    checked: &[Checked],
    rescored: Option<&rescoring::Summary>,
    as_json: bool,
) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let violated = checked.iter().filter(|session| session.violation.is_some()).count();
    if as_json {
        let all = json!({
            "sessions": checked, "checked": checked.len(), "violated": violated,
            "rescored": rescored,
        });
        writeln!(out, "{}", serde_json::to_string_pretty(&all)?)?;
        return Ok(());
    }
    let sum = |of: fn(&Checked) -> u64| checked.iter().map(of).sum::<u64>();
    writeln!(
        out,
        "{} checked, {violated} violated: {}, {} tokens sampled, {} trained, {}",
        counted(checked.len() as u64, "session"),
        counted(sum(|session| session.traces), "trace"),
        sum(|session| session.sampled),
        sum(|session| session.trained),
        hashes(sum(|session| session.fingerprints.checked)),
    )?;
    if let Some(rescored) = rescored {
        write!(out, "{}", rescored.text())?;
    }
    Ok(())
}

/// What the calls' records say of themselves.
fn hashes(checked: u64) -> String {
    match checked {
        0 => "no records with a hash (token mode writes them)".to_owned(),
        checked => format!("{} with the right hash", counted(checked, "record")),
    }
}

/// What a session's traces were held against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum HeldAgainst {
    /// Its journal.
    Journal,
    /// Nothing but itself.
    Itself,
    /// There are no traces; they were built anew, in every layout, and held against the journal.
    Rebuilt,
    /// There is nothing to check.
    Nothing,
}

/// What was found out about one session.
#[derive(Serialize)]
struct Checked {
    session: String,
    held_against: HeldAgainst,
    calls: u64,
    traces: u64,
    sampled: u64,
    trained: u64,
    #[serde(serialize_with = "counts")]
    fingerprints: FingerprintCounts,
    violation: Option<Broken>,
    notes: Vec<String>,
}

/// A promise that is not kept.
#[derive(Serialize)]
struct Broken {
    /// Its number in ARCHITECTURE.md; absent where only the shape is wrong.
    promise: Option<u8>,
    name: &'static str,
    what: String,
    meaning: &'static str,
}

impl Broken {
    fn of(violation: &Violation) -> Self {
        let promise = violation.promise();
        Self {
            promise: promise.map(|promise| promise as u8),
            name: promise.map_or("shape", |promise| promise.name()),
            what: violation.to_string(),
            meaning: violation.meaning(),
        }
    }
}

impl Checked {
    fn of(evidence: &Evidence) -> Self {
        let mut checked = Self {
            session: evidence.name.clone(),
            held_against: HeldAgainst::Nothing,
            calls: 0,
            traces: 0,
            sampled: 0,
            trained: 0,
            fingerprints: FingerprintCounts::default(),
            violation: evidence.damage.clone().map(|what| Broken {
                promise: None,
                name: "shape",
                what,
                meaning: "what is stored is not what was delivered",
            }),
            notes: evidence.notes.clone(),
        };
        let found = match (&evidence.trajectory, &evidence.journal) {
            (Some(trajectory), Some(journal)) => checked.with_journal(trajectory, journal),
            (Some(trajectory), None) => checked.alone(trajectory),
            (None, Some(journal)) => checked.rebuilt(journal),
            (None, None) => Ok(()),
        };
        if let Err(violation) = found {
            checked.violation = Some(Broken::of(&violation));
        }
        checked
    }

    fn with_journal(
        &mut self,
        trajectory: &Trajectory,
        journal: &RecordedSession,
    ) -> Result<(), Violation> {
        self.held_against = HeldAgainst::Journal;
        self.count(trajectory);
        self.records(journal)?;
        polar_trajectory::verify(trajectory, journal)
    }

    fn alone(&mut self, trajectory: &Trajectory) -> Result<(), Violation> {
        self.held_against = HeldAgainst::Itself;
        self.count(trajectory);
        self.calls = trajectory.roles.values().map(|role| u64::from(role.calls)).sum();
        self.notes.push(
            "without its journal it is not known whether its tokens are those of the engine"
                .to_owned(),
        );
        verify_alone(trajectory)
    }

    fn rebuilt(&mut self, journal: &RecordedSession) -> Result<(), Violation> {
        self.held_against = HeldAgainst::Rebuilt;
        self.records(journal)?;
        for strategy in [
            TrajectoryStrategy::PerRequest,
            TrajectoryStrategy::PrefixTree,
            TrajectoryStrategy::PrefixMerging,
        ] {
            let built = build(journal, BuildOptions::from(strategy), None);
            self.count(&built.trajectory);
            polar_trajectory::verify(&built.trajectory, journal)?;
        }
        Ok(())
    }

    fn count(&mut self, trajectory: &Trajectory) {
        self.traces = trajectory.lineages() as u64;
        self.sampled = trajectory.tokens.sampled;
        self.trained = trajectory.tokens.trained;
    }

    fn records(&mut self, journal: &RecordedSession) -> Result<(), Violation> {
        self.calls = journal.calls().len() as u64;
        if let Some(damage) = &journal.damage {
            let (what, offset) = (&damage.what, damage.offset);
            self.notes.push(format!(
                "its journal is damaged at byte {offset}: {what}; the calls before are whole"
            ));
        } else if !journal.sealed {
            self.notes.push("its journal was not closed; a call may be missing".to_owned());
        }
        self.fingerprints = verify_fingerprints(journal)?;
        let unchecked = self.fingerprints.unchecked;
        if unchecked > 0 {
            self.notes.push(format!("{unchecked} records have a hash of ids that were not kept"));
        }
        Ok(())
    }

    /// A line, and one for each thing to know.
    fn lines(&self) -> String {
        let verdict = match (&self.violation, self.held_against) {
            (Some(_), _) => "VIOLATED",
            (None, HeldAgainst::Nothing) => "nothing to check",
            (None, _) => "ok",
        };
        let against = match self.held_against {
            HeldAgainst::Journal => ", held against its journal",
            HeldAgainst::Itself => ", held against itself only",
            HeldAgainst::Rebuilt => ", built from its journal in every layout",
            HeldAgainst::Nothing => "",
        };
        let mut text = format!(
            "{}: {verdict}: {}, {}, {} of {} sampled tokens trained{against}",
            self.session,
            counted(self.calls, "call"),
            counted(self.traces, "trace"),
            self.trained,
            self.sampled
        );
        if self.fingerprints.checked > 0 {
            text.push_str(&format!(", {} hashes right", self.fingerprints.checked));
        }
        text.push('\n');
        if let Some(broken) = &self.violation {
            let promise = match broken.promise {
                Some(number) => format!("promise {number}, {}", broken.name),
                None => broken.name.to_owned(),
            };
            text.push_str(&format!("  {promise}: {}\n  → {}\n", broken.what, broken.meaning));
        }
        text.extend(self.notes.iter().map(|note| format!("  note: {note}\n")));
        text
    }
}

/// The traces of a session that can be scored again: those it has, or those its journal makes.
fn training_data(evidence: &Evidence) -> Vec<polar_types::Trace> {
    let built = match (&evidence.trajectory, &evidence.journal) {
        (Some(trajectory), _) => return unroll(trajectory).unwrap_or_default(),
        (None, Some(journal)) => build(journal, TrajectoryStrategy::PrefixMerging, None),
        (None, None) => return Vec::new(),
    };
    built.trajectory.traces
}

fn counts<S: serde::Serializer>(counts: &FingerprintCounts, s: S) -> Result<S::Ok, S::Error> {
    json!({"checked": counts.checked, "unchecked": counts.unchecked, "absent": counts.absent})
        .serialize(s)
}

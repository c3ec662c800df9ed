//! `polar drift`: why a session is more than one trace, and what would heal it.

use crate::args::Drift as Args;
use crate::detokenizer::Detokenizer;
use crate::display::counted;
use crate::evidence::{Evidence, Sources};
use anyhow::Result;
use polar_trajectory::{Drift, MessageDifference, Remedy, drift_of_traces};
use polar_types::{CallRole, ForkCause};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write as _;

pub(crate) async fn drift(args: Args) -> Result<()> {
    let mut sources = Sources::of(&args.targets, args.server).await?;
    let mut causes = BTreeMap::<ForkCause, u32>::new();
    let mut healed = 0;
    let mut sessions = Vec::new();
    for source in std::mem::take(&mut sources.sources) {
        let evidence = sources.load(source).await?;
        let session = Session::of(&evidence, args.engine.as_deref()).await?;
        for fork in &session.forks {
            *causes.entry(fork.drift.fork.cause).or_default() += 1;
            healed += u32::from(fork.drift.advice.remedy != Remedy::None);
        }
        if args.json {
            sessions.push(session);
        } else {
            std::io::stdout().lock().write_all(session.text().as_bytes())?;
        }
    }
    let mut out = std::io::stdout().lock();
    if args.json {
        let all = json!({"sessions": sessions, "causes": causes, "can_be_healed": healed});
        writeln!(out, "{}", serde_json::to_string_pretty(&all)?)?;
    } else {
        writeln!(out, "{}", summary(&causes, healed))?;
    }
    Ok(())
}

fn summary(causes: &BTreeMap<ForkCause, u32>, healed: u32) -> String {
    let parts: Vec<String> =
        causes.iter().map(|(cause, count)| format!("{count} {}", word(cause))).collect();
    let all = causes.values().sum::<u32>();
    match all {
        0 => "no traces".to_owned(),
        _ => {
            let traces = counted(u64::from(all), "trace");
            format!("{traces}: {}; of these {healed} can be healed", parts.join(", "))
        }
    }
}

/// The traces of a session, each with why it is one.
#[derive(Serialize)]
struct Session {
    session: String,
    forks: Vec<Fork>,
    notes: Vec<String>,
}

#[derive(Serialize)]
struct Fork {
    #[serde(flatten)]
    drift: Drift,
    /// The tokens as text, where an engine told.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<Text>,
}

#[derive(Serialize)]
struct Text {
    before: String,
    expected: String,
    found: String,
}

impl Session {
    async fn of(evidence: &Evidence, engine: Option<&str>) -> Result<Self> {
        let mut notes = evidence.notes.clone();
        let nowhere = &Value::Null;
        let (drifts, recorded) = match (&evidence.journal, &evidence.trajectory) {
            (Some(journal), trajectory) => {
                let roles = trajectory.as_ref().map(|trajectory| trajectory.train_roles.clone());
                let roles = roles.unwrap_or_else(CallRole::trained_by_default);
                (polar_trajectory::drift(journal, &roles), &journal.header.engine)
            }
            (None, Some(trajectory)) => {
                notes.push("without its journal, what its messages say is not known".to_owned());
                let of_trace = trajectory.traces.first().map(|trace| &trace.sampling);
                let tree = trajectory.tree.as_ref();
                let of_tree = tree.and_then(|tree| tree.lineages.first());
                let sampling = of_trace.or(of_tree.map(|lineage| &lineage.sampling));
                let engine = sampling.map_or(nowhere, |sampling| &sampling["engine"]);
                (drift_of_traces(trajectory)?, engine)
            }
            (None, None) => (Vec::new(), nowhere),
        };
        let detokenizer = Detokenizer::of(recorded, engine);
        let mut forks = Vec::with_capacity(drifts.len());
        for drift in drifts {
            let text = text(&detokenizer, &drift).await;
            forks.push(Fork { drift, text });
        }
        Ok(Self { session: evidence.name.clone(), forks, notes })
    }

    fn text(&self) -> String {
        let mut text =
            format!("── {}: {}\n", self.session, counted(self.forks.len() as u64, "trace"));
        text.extend(self.forks.iter().map(Fork::lines));
        text.extend(self.notes.iter().map(|note| format!("  note: {note}\n")));
        text
    }
}

/// The text of the tokens, when the engine gives all of it.
async fn text(detokenizer: &Detokenizer, drift: &Drift) -> Option<Text> {
    let tokens = drift.tokens.as_ref()?;
    Some(Text {
        before: detokenizer.ask(&tokens.before).await?,
        expected: detokenizer.ask(&tokens.expected).await?,
        found: detokenizer.ask(&tokens.found).await?,
    })
}

impl Fork {
    fn lines(&self) -> String {
        let Drift { trace, call, role, fork, tokens, message, advice, rule } = &self.drift;
        let cause = word(&fork.cause);
        let mut text = format!("trace {trace}: {cause}: call {call} ({})", role.as_str());
        if let Some(nearest) = &fork.nearest {
            text.push_str(&format!(" comes closest to call {nearest}"));
        }
        text.push('\n');
        if let Some(tokens) = tokens {
            text.push_str(&format!("  both begin with the same {} tokens", tokens.position));
            match (tokens.expected.first(), tokens.found.first()) {
                (Some(expected), Some(found)) => {
                    text.push_str(&format!("; then comes {found} in the place of {expected}\n"));
                }
                (None, Some(found)) => {
                    text.push_str(&format!("; that call ends there, this goes on with {found}\n"));
                }
                (Some(_), None) => text.push_str("; this prompt ends there\n"),
                (None, None) => text.push_str(", which is all of both\n"),
            }
            let side = |name: &str, ids: &[u32], words: Option<&String>| match words {
                Some(words) => format!("    {name} {words:?} {ids:?}\n"),
                None => format!("    {name} {ids:?}\n"),
            };
            let words = self.text.as_ref();
            text.push_str(&side("behind", &tokens.before, words.map(|words| &words.before)));
            text.push_str(&side("was   ", &tokens.expected, words.map(|words| &words.expected)));
            text.push_str(&side("is now", &tokens.found, words.map(|words| &words.found)));
        }
        if let Some(message) = message {
            text.push_str(&changed(message));
        }
        text.push_str(&format!("  → {}\n", advice.text));
        if let Some(rule) = rule {
            let (part, pattern) = (word(&rule.part), &rule.pattern);
            text.push_str(&format!(
                "    normalise:\n    - {{name: volatile_line, description: A line that changes, \
                 part: {part}, pattern: {}}}\n",
                quoted(pattern)
            ));
        }
        text
    }
}

/// A text as YAML takes it, whatever is in it.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// The first line of a message that says something else.
fn changed(difference: &MessageDifference) -> String {
    let role = difference.expected["role"].as_str().unwrap_or("unknown");
    let (old, new) = (difference.expected.to_string(), difference.found.to_string());
    let same = old.bytes().zip(new.bytes()).take_while(|(old, new)| old == new).count();
    let part = |text: &str| {
        let start = text.floor_char_boundary(same.saturating_sub(40));
        let end = text.floor_char_boundary((same + 80).min(text.len()));
        let (before, behind) =
            (if start > 0 { "…" } else { "" }, if end < text.len() { "…" } else { "" });
        format!("{before}{}{behind}", &text[start..end])
    };
    format!(
        "  message {} ({role}) was {}\n    and came back as {}\n",
        difference.index,
        part(&old),
        part(&new)
    )
}

/// The name a unit variant has in JSON.
fn word<T: Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(Value::String(word)) => word,
        _ => "unknown".to_owned(),
    }
}

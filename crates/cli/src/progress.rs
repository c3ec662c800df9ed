//! How far tasks have come, shown while they run: bars on a terminal, elsewhere a line when
//! something has changed; and what sessions wait for when nothing changes for a while.

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use polar_types::{SessionInfo, SessionStatus, TaskInfo};
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write as _};
use std::time::Duration;
use tokio::time::Instant;

pub(crate) struct Progress {
    view: View,
    /// The latest counts, as a line.
    line: String,
    /// When to say what is waited for, unless a count changes before.
    explain_at: Instant,
}

enum View {
    Bars { bars: BTreeMap<&'static str, ProgressBar>, group: MultiProgress },
    Lines,
}

/// After so long without a change one wants to know why.
const QUIET: Duration = Duration::from_secs(20);
/// And once more after each such time.
const STILL_QUIET: Duration = Duration::from_secs(60);

const STAGES: [(&str, &[SessionStatus]); 6] = [
    ("queued", &[SessionStatus::Queued]),
    ("preparing", &[SessionStatus::Preparing]),
    ("ready", &[SessionStatus::Ready]),
    ("running", &[SessionStatus::Running]),
    ("grading", &[SessionStatus::Grading, SessionStatus::Delivering]),
    (
        "ended",
        &[
            SessionStatus::Completed,
            SessionStatus::TimedOut,
            SessionStatus::Failed,
            SessionStatus::Cancelled,
        ],
    ),
];

impl Progress {
    pub(crate) fn new(total: u64) -> Self {
        let view = if std::io::stderr().is_terminal() { bars(total) } else { View::Lines };
        Self { view, line: String::new(), explain_at: Instant::now() + QUIET }
    }

    pub(crate) fn update(&mut self, tasks: &[TaskInfo]) {
        if let View::Bars { bars, .. } = &self.view {
            for (name, count) in stages(tasks) {
                if let Some(bar) = bars.get(name) {
                    bar.set_position(count);
                }
            }
        }
        let line = stages_line(tasks);
        if line == self.line {
            return;
        }
        self.line = line;
        self.explain_at = Instant::now() + QUIET;
        if let View::Lines = self.view {
            self.say(&self.line);
        }
    }

    /// Whether nothing has changed for so long that [`explain`](Self::explain) should follow.
    pub(crate) fn is_quiet(&self) -> bool {
        Instant::now() >= self.explain_at
    }

    /// Says what these sessions wait for.
    pub(crate) fn explain(&mut self, sessions: &[SessionInfo]) {
        self.explain_at = Instant::now() + STILL_QUIET;
        for line in waits(sessions) {
            self.say(&line);
        }
    }

    /// A line for people. Nobody is hurt when nobody reads it.
    fn say(&self, line: &str) {
        let line = crate::display::spelled_out(line);
        let _ = match &self.view {
            View::Bars { group, .. } => group.println(line),
            View::Lines => writeln!(std::io::stderr(), "{line}"),
        };
    }

    pub(crate) fn finish(self) {
        if let View::Bars { bars, .. } = self.view {
            for bar in bars.values() {
                bar.finish_and_clear();
            }
        }
    }
}

fn bars(total: u64) -> View {
    let group = MultiProgress::new();
    let style = ProgressStyle::with_template("{prefix:>10} {bar:40} {pos}/{len}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    let bars = STAGES
        .iter()
        .map(|(name, _)| {
            let bar = group.add(ProgressBar::new(total).with_style(style.clone()));
            bar.set_prefix(*name);
            (*name, bar)
        })
        .collect();
    View::Bars { bars, group }
}

/// How many sessions of the tasks are in each stage.
fn stages(tasks: &[TaskInfo]) -> impl Iterator<Item = (&'static str, u64)> {
    STAGES.into_iter().map(|(name, statuses)| {
        let counts = tasks
            .iter()
            .flat_map(|task| statuses.iter().filter_map(|s| task.sessions.get(s.as_str())));
        (name, counts.map(|count| u64::from(*count)).sum())
    })
}

/// `sessions: 3 running, 1 ended`.
fn stages_line(tasks: &[TaskInfo]) -> String {
    let taken = stages(tasks).filter(|(_, count)| *count > 0);
    let parts: Vec<String> = taken.map(|(name, count)| format!("{count} {name}")).collect();
    format!("sessions: {}", parts.join(", "))
}

/// At most so many lines of what is waited for.
const MOST_WAITS: usize = 4;

/// `a-s0 waits for the agent: …`, and `a-s0 and 2 more wait for a node` where the words are the same.
fn waits(sessions: &[SessionInfo]) -> Vec<String> {
    let mut by_words: BTreeMap<&str, Vec<&SessionInfo>> = BTreeMap::new();
    for session in sessions {
        if let Some(words) = &session.waiting_for {
            by_words.entry(words).or_default().push(session);
        }
    }
    let mut by_words: Vec<_> = by_words.into_iter().collect();
    by_words.sort_by_key(|(_, who)| std::cmp::Reverse(who.len()));
    let others: usize = by_words.iter().skip(MOST_WAITS).map(|(_, who)| who.len()).sum();
    let line = |(words, who): &(&str, Vec<&SessionInfo>)| {
        let first = &who.first()?.session_id;
        Some(match who.len() - 1 {
            0 => format!("{first} waits for {words}"),
            more => format!("{first} and {more} more wait for {words}"),
        })
    };
    let mut lines: Vec<_> = by_words.iter().take(MOST_WAITS).filter_map(line).collect();
    if others > 0 {
        lines.push(format!("{others} more wait; `polar status` says what for"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn sessions(waiting: impl IntoIterator<Item = impl Into<Value>>) -> Vec<SessionInfo> {
        let session = |(number, waiting_for): (usize, Value)| {
            serde_json::from_value(json!({
                "session_id": format!("a-s{number}"), "task_id": "a", "group_id": "a",
                "sample_index": number, "status": "running", "attempts": [],
                "created_at": "2026-01-01T00:00:00Z", "updated_at": "2026-01-01T00:00:00Z",
                "waiting_for": waiting_for,
            }))
            .unwrap()
        };
        waiting.into_iter().map(Into::into).enumerate().map(session).collect()
    }

    #[test]
    fn what_is_waited_for_is_said_once_for_all_that_wait_for_it() {
        let some = sessions(["a node".into(), "the agent".into(), Value::Null, "a node".into()]);
        assert_eq!(waits(&some), ["a-s0 and 1 more wait for a node", "a-s1 waits for the agent"]);
        let many = waits(&sessions((0..100).map(|number| format!("agent {number}"))));
        assert_eq!(many.len(), 5);
        assert!(many[4].starts_with("96 more wait"), "{many:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_waited_for_is_asked_when_nothing_changes() {
        let task = |running: u32| -> TaskInfo {
            serde_json::from_value(json!({
                "task_id": "a", "status": "running", "harness": "pi", "num_samples": 2,
                "queue": "default", "metadata": {}, "sessions": {"running": running},
                "created_at": "2026-01-01T00:00:00Z", "updated_at": "2026-01-01T00:00:00Z",
            }))
            .unwrap()
        };
        let mut progress = Progress::new(2);
        let after = async |seconds| tokio::time::advance(Duration::from_secs(seconds)).await;
        progress.update(&[task(1)]);
        after(19).await;
        progress.update(&[task(2)]);
        after(19).await;
        progress.update(&[task(2)]);
        assert!(!progress.is_quiet());
        after(1).await;
        assert!(progress.is_quiet());
        progress.explain(&sessions(["the agent"]));
        after(59).await;
        assert!(!progress.is_quiet());
        after(1).await;
        assert!(progress.is_quiet());
    }
}

//! `polar logs`: what the agent and the evaluator of a session printed.

use crate::api::Api;
use crate::args::{LogName, Logs};
use crate::display;
use anyhow::{Result, bail};
use polar_types::{AttemptInfo, SessionInfo};
use std::io::{IsTerminal as _, Write as _};

/// Lines shown of a text under a failure, and the most bytes of each.
const TAIL_LINES: usize = 15;
const TAIL_LINE_BYTES: usize = 300;

impl LogName {
    /// What the API calls it.
    pub(crate) fn stream(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
            Self::Grader => "grader",
            Self::Diff => "diff",
        }
    }

    /// What it is called among a session's artifacts, and in messages.
    pub(crate) fn artifact(self) -> &'static str {
        match self {
            Self::Stdout => "stdout.log",
            Self::Stderr => "stderr.log",
            Self::Grader => "grader.log",
            Self::Diff => "workspace.diff",
        }
    }
}

pub(crate) async fn logs(args: Logs) -> Result<()> {
    let api = Api::of(args.server.clone())?;
    match print(&api, &args).await {
        Ok(()) => Ok(()),
        Err(error) => match api.sessions(&args.session).await {
            Ok(sessions) if !sessions.is_empty() => bail!(
                "{} is a task, and logs are of its sessions: {}",
                args.session,
                listed(&sessions)
            ),
            _ => Err(error),
        },
    }
}

/// The names of the first sessions.
fn listed(sessions: &[SessionInfo]) -> String {
    const SHOWN: usize = 8;
    let names: Vec<_> =
        sessions.iter().take(SHOWN).map(|session| session.session_id.to_string()).collect();
    let more = if sessions.len() > SHOWN { ", …" } else { "" };
    format!("{}{more}", names.join(", "))
}

async fn print(api: &Api, args: &Logs) -> Result<()> {
    if let Some(name) = args.name {
        let text = shown(api.log(&args.session, name, args.attempt).await?);
        std::io::stdout().lock().write_all(&text)?;
        return Ok(());
    }
    let session = api.session(&args.session).await?;
    let names = kept(&session, args.attempt)?;
    for name in names {
        let text = shown(api.log(&args.session, name, args.attempt).await?);
        let mut out = std::io::stdout().lock();
        writeln!(out, "══ {} ══", name.artifact())?;
        out.write_all(&text)?;
        if !text.is_empty() && !text.ends_with(b"\n") {
            writeln!(out)?;
        }
    }
    Ok(())
}

/// As it is, but not to a terminal, which would obey what the agent has printed.
fn shown(text: Vec<u8>) -> Vec<u8> {
    match std::io::stdout().is_terminal() {
        true => display::spelled_out(&String::from_utf8_lossy(&text)).into_bytes(),
        false => text,
    }
}

/// The texts that are there, in the order in which they came about.
fn kept(session: &SessionInfo, attempt: Option<u32>) -> Result<Vec<LogName>> {
    let report = match attempt {
        None => session.report(),
        Some(number) => session
            .attempts
            .iter()
            .find(|attempt| attempt.attempt == number)
            .and_then(|attempt| attempt.report.as_ref()),
    };
    let id = &session.session_id;
    let Some(report) = report else {
        bail!(
            "{id} has no logs{}; its status is {}, and they come when an attempt ends",
            attempt.map(|number| format!(" of attempt {number}")).unwrap_or_default(),
            session.status.as_str()
        );
    };
    let is_kept = |name: &LogName| report.artifacts.iter().any(|a| a.name == name.artifact());
    let names = [LogName::Stdout, LogName::Stderr, LogName::Grader];
    let found: Vec<LogName> = names.into_iter().filter(is_kept).collect();
    if found.is_empty() {
        bail!("{id} printed nothing that was kept; see what failed with `polar status`");
    }
    Ok(found)
}

/// The end of a text of an attempt, indented; nothing where there is none to show.
pub(crate) async fn tail(
    api: &Api,
    session: &SessionInfo,
    attempt: &AttemptInfo,
    names: &[LogName],
) -> Option<String> {
    let artifacts = &attempt.report.as_ref()?.artifacts;
    for name in names {
        if !artifacts.iter().any(|a| a.name == name.artifact() && a.size > 0) {
            continue;
        }
        // A log that cannot be had must not hide the failure itself.
        let text = api.log(session.session_id.as_str(), *name, Some(attempt.attempt)).await.ok()?;
        let shown = last_lines(&String::from_utf8_lossy(&text));
        if !shown.is_empty() {
            return Some(format!("  end of {}:\n{shown}", name.artifact()));
        }
    }
    None
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    let first = lines.len().saturating_sub(TAIL_LINES);
    lines[first..].iter().map(|line| format!("    | {}\n", shortened(line))).collect()
}

fn shortened(line: &str) -> String {
    if line.len() <= TAIL_LINE_BYTES {
        return line.to_owned();
    }
    format!("{}…", &line[..line.floor_char_boundary(TAIL_LINE_BYTES)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_text_is_shown() {
        let text: String = (0..100).map(|number| format!("line {number}\n")).collect();
        let shown = last_lines(&text);
        assert_eq!(shown.lines().count(), TAIL_LINES);
        assert!(shown.ends_with("    | line 99\n"), "{shown}");
        assert_eq!(last_lines("\n\n"), "");
        assert_eq!(shortened(&"é".repeat(200)).chars().count(), 151);
    }
}

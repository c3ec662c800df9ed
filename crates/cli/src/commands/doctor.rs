//! `polar doctor`: what is missing on this machine, what for, and how to get it.

use crate::args::{Doctor, Isolation};
use crate::{engines, paths, stack};
use anyhow::Result;
use polar_engine::{Check, Outcome, ProbeError};
use polar_sandbox::{LOCAL_PATH, SandboxProvider};
use serde::Serialize;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Ok,
    /// Polar works without it; `help` says what does not.
    Warning,
    /// Needed, and not there.
    Missing,
    /// Needed, and not usable.
    Broken,
}

#[derive(Debug, Serialize)]
struct Finding {
    name: String,
    verdict: Verdict,
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    help: Option<String>,
}

pub(crate) async fn doctor(args: Doctor) -> Result<()> {
    let mut findings = vec![
        program("git", &["--version"], "diffs of the work folder", "apt-get install git").await,
        program("npm", &["--version"], "installing agent CLIs", "install Node 20 or newer").await,
        program("node", &["--version"], "running agent CLIs", "install Node 20 or newer").await,
        program("python3", &["--version"], "the Python SDK", "install Python 3.9 or newer").await,
        python_inside().await,
    ];
    findings.extend(sandboxes().await?);
    // The cache holds no secrets, and may be shared.
    findings.push(folder("cache", paths::cache(), |path| Ok(std::fs::create_dir_all(path)?)));
    findings.push(folder("state", paths::state(None), paths::make_private));
    if args.engine.engine.is_some() {
        findings.extend(engine(&args).await);
    }
    let broken = findings
        .iter()
        .any(|finding| matches!(finding.verdict, Verdict::Missing | Verdict::Broken));
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&findings)?)?;
    } else {
        for finding in &findings {
            let mark = match finding.verdict {
                Verdict::Ok => "ok     ",
                Verdict::Warning => "warning",
                Verdict::Missing => "missing",
                Verdict::Broken => "broken ",
            };
            writeln!(out, "{mark}  {:<34} {}", finding.name, finding.found)?;
            if let Some(help) = &finding.help {
                writeln!(out, "         {:<34} → {help}", "")?;
            }
        }
    }
    anyhow::ensure!(!broken, "something that is needed does not work; see above");
    Ok(())
}

async fn program(name: &str, args: &[&str], purpose: &str, mend: &str) -> Finding {
    let name = name.to_owned();
    match first_line(Command::new(&name).args(args)).await {
        Some(found) => Finding { name, verdict: Verdict::Ok, found, help: None },
        None => Finding {
            name,
            verdict: Verdict::Missing,
            found: "not found, or does not run".to_owned(),
            help: Some(format!("needed for {purpose}: {mend}")),
        },
    }
}

/// What local sandboxes find, which see the system's programs and none of the user's own.
async fn python_inside() -> Finding {
    let name = "python3 in local sandboxes".to_owned();
    let mut command = Command::new("python3");
    match first_line(command.arg("--version").env("PATH", LOCAL_PATH)).await {
        Some(found) => Finding { name, verdict: Verdict::Ok, found, help: None },
        None => Finding {
            name,
            verdict: Verdict::Warning,
            found: format!("none in {LOCAL_PATH}"),
            help: Some(
                "needed by tasks that call python3: install the system's, or use docker with an \
                 image; one in a home folder is not seen inside"
                    .to_owned(),
            ),
        },
    }
}

/// What a program prints first, when it runs and ends well.
async fn first_line(command: &mut Command) -> Option<String> {
    let run = command.stdin(Stdio::null()).kill_on_drop(true).output();
    let output = tokio::time::timeout(Duration::from_secs(20), run).await.ok()?.ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    output.status.success().then(|| text.lines().next().unwrap_or_default().trim().to_owned())
}

async fn sandboxes() -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let folder = tempfile::tempdir()?;
    let providers = stack::providers(Isolation::Bubblewrap, "doctor", folder.path(), &[]).await?;
    for provider in providers {
        let name = format!("sandbox {}", provider.kind());
        findings.push(match check(provider.as_ref()).await {
            Ok(()) => Finding { name, verdict: Verdict::Ok, found: "works".to_owned(), help: None },
            Err(help) => Finding {
                name,
                // Tasks ask for the local one unless they say otherwise.
                verdict: match provider.kind() {
                    "local" => Verdict::Missing,
                    _ => Verdict::Warning,
                },
                found: "does not work".to_owned(),
                help: Some(help),
            },
        });
    }
    Ok(findings)
}

async fn check(provider: &dyn SandboxProvider) -> Result<(), String> {
    match tokio::time::timeout(Duration::from_secs(30), provider.check()).await {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err("no answer within 30 seconds".to_owned()),
    }
}

fn folder(name: &str, path: Result<PathBuf>, make: impl Fn(&Path) -> Result<()>) -> Finding {
    let name = format!("{name} folder");
    let made = path.and_then(|path| {
        make(&path)?;
        Ok(path)
    });
    match made {
        Ok(path) => {
            Finding { name, verdict: Verdict::Ok, found: path.display().to_string(), help: None }
        }
        Err(error) => Finding {
            name,
            verdict: Verdict::Broken,
            found: format!("{error:#}"),
            help: Some("set POLAR_CACHE and POLAR_STATE to folders you can write".to_owned()),
        },
    }
}

/// Each check of the probe, also where the engine fails some.
async fn engine(args: &Doctor) -> Vec<Finding> {
    let error = match engines::probe_engine(&args.engine).await {
        Ok((_, report)) => return report.checks.into_iter().map(Finding::from).collect(),
        Err(error) => error,
    };
    match error.downcast::<ProbeError>() {
        Ok(ProbeError::Unfit(report)) => report.checks.into_iter().map(Finding::from).collect(),
        Ok(error) => vec![unusable(&error.to_string())],
        Err(error) => vec![unusable(&format!("{error:#}"))],
    }
}

fn unusable(help: &str) -> Finding {
    Finding {
        name: "engine".to_owned(),
        verdict: Verdict::Broken,
        found: "cannot be used for training".to_owned(),
        help: Some(help.to_owned()),
    }
}

impl From<Check> for Finding {
    fn from(check: Check) -> Self {
        let verdict = match check.outcome {
            Outcome::Passed => Verdict::Ok,
            Outcome::Warning => Verdict::Warning,
            Outcome::Failed => Verdict::Broken,
        };
        // Among the other findings it has to be said whose reply or window it is.
        let name = match check.name.as_str() {
            "engine" => check.name,
            name => format!("engine: {name}"),
        };
        Self { name, verdict, found: check.detail, help: check.advice }
    }
}

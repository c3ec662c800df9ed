//! `polar run`: tasks from files, here or on a running server.

use crate::api::Api;
use crate::args::Run;
use crate::commands::follow::{self, Followed};
use crate::engines;
use crate::interrupt::{Interrupted, Interrupts};
use crate::runs::RunFolder;
use crate::stack::{StackConfig, with_stack};
use crate::task_file::{self, Placed};
use crate::{paths, token};
use anyhow::{Context, Result, bail};
use polar_types::TaskInfo;
use serde_json::{Value, json};
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

pub(crate) async fn run(args: Run) -> Result<()> {
    let mut tasks = task_file::read_files(&args.tasks)?;
    for Placed { task, .. } in &mut tasks {
        if let Some(harness) = &args.harness {
            task_file::set_harness(task, harness)?;
        }
        if let Some(samples) = args.samples {
            task["num_samples"] = json!(samples);
        }
    }
    let mut interrupts = Interrupts::listen()?;
    let followed = match args.server.clone() {
        Some(server) => {
            for Placed { task, .. } in &mut tasks {
                name(task)?;
            }
            there(&server, args.token, &tasks, &mut interrupts).await?
        }
        None => here(args, tasks, &mut interrupts).await?,
    };
    follow::require_success(&followed)
}

/// On a running server, which goes on with the task when this process ends.
async fn there(
    server: &str,
    token: Option<String>,
    tasks: &[Placed],
    interrupts: &mut Interrupts,
) -> Result<Vec<Followed>> {
    let api = Api::new(server, token::for_server(server, token)?)?;
    let named: Vec<_> = tasks.iter().filter_map(|placed| placed.task["task_id"].as_str()).collect();
    // A server that hangs must not keep this process.
    let submitted = interrupts.unless(submit(&api, tasks)).await;
    let infos = submitted.map_err(|error| match error.is::<Interrupted>() {
        true => {
            let first = named.first().copied().unwrap_or_default();
            error.context(format!(
                "not submitted, unless `polar status {first} --server {server}` knows it"
            ))
        }
        false => error,
    })?;
    let ids: Vec<_> = infos.iter().map(|info| info.task_id.to_string()).collect();
    let id = ids.first().cloned().unwrap_or_default();
    let what = match ids.len() {
        1 => format!("task {id} goes on"),
        count => format!("{count} tasks go on, {id} and others,"),
    };
    let work = async {
        let followed = follow::follow(&api, infos).await?;
        follow::print_summary(&api, &followed).await?;
        Ok(followed)
    };
    // Whatever keeps this process from the end, the task comes to it.
    interrupts.unless(work).await.with_context(|| {
        format!(
            "{what} at {server}; look at it with `polar status {id} --server {server}`, \
             or end it with `polar cancel {id} --server {server}`"
        )
    })
}

/// Submits tasks; of several, a refusal says which it is of.
async fn submit(api: &Api, tasks: &[Placed]) -> Result<Vec<TaskInfo>> {
    let mut infos = Vec::with_capacity(tasks.len());
    for Placed { task, place } in tasks {
        let submitted = follow::submit(api, task).await;
        infos.push(match tasks.len() {
            1 => submitted?,
            _ => submitted.with_context(|| place.clone())?,
        });
    }
    Ok(infos)
}

/// Names a task that has no name, so that a submission whose answer is lost can be sent
/// again without making a second task.
fn name(task: &mut Value) -> Result<()> {
    if task.get("task_id").is_none_or(Value::is_null) {
        task["task_id"] = json!(format!("task-{}", &token::random_hex()?[..32]));
    }
    Ok(())
}

/// With a server and a node in this process.
async fn here(args: Run, tasks: Vec<Placed>, interrupts: &mut Interrupts) -> Result<Vec<Followed>> {
    if args.engine.engine.is_empty() {
        bail!(
            "where should the agent's calls go? Give an inference server with --engine \
             (try `polar simulate-engine`), or a running rollout server with --server"
        );
    }
    match args.state.clone() {
        Some(state) => {
            let followed = within(&args, state.clone(), tasks, interrupts).await?;
            writeln!(
                std::io::stdout(),
                "\nkept in {0}; look again with `polar up --state {0}`, then `polar trajectories` and \
                 `polar logs`",
                state.display()
            )?;
            Ok(followed)
        }
        None => {
            let mut args = args;
            let node_id = paths::passing_node_id(args.node.node_id.take())?;
            args.node.node_id = Some(node_id.clone());
            let folder = interrupts.unless(RunFolder::create(&node_id)).await?;
            let state = folder.path().to_owned();
            folder.remove_after(within(&args, state, tasks, interrupts).await).await
        }
    }
}

async fn within(
    args: &Run,
    state: PathBuf,
    tasks: Vec<Placed>,
    interrupts: &mut Interrupts,
) -> Result<Vec<Followed>> {
    let engines = interrupts.unless(engines::connect_engines(&args.engine)).await?;
    let token = token::of_this_process()?;
    let secret = token.secret.clone();
    let config = StackConfig {
        api: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0),
        token,
        state,
        upload_folders: Vec::new(),
        node: args.node.clone(),
    };
    with_stack(config, engines, interrupts, async |stack| {
        let api = Api::new(stack.api_url(), Some(secret))?;
        let followed = follow::follow(&api, submit(&api, &tasks).await?).await?;
        follow::print_summary(&api, &followed).await?;
        Ok(followed)
    })
    .await
}

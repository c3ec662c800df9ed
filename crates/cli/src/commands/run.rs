//! `polar run`: one task file, here or on a running server.

use crate::api::Api;
use crate::args::Run;
use crate::commands::follow::{self, Followed};
use crate::interrupt::{Interrupted, Interrupts};
use crate::runs::RunFolder;
use crate::stack::{self, StackConfig, with_stack};
use crate::{paths, task_file, token};
use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

pub(crate) async fn run(args: Run) -> Result<()> {
    let mut task = task_file::read(&args.task)?;
    if let Some(harness) = &args.harness {
        task_file::set_harness(&mut task, harness)?;
    }
    if let Some(samples) = args.samples {
        task["num_samples"] = json!(samples);
    }
    let mut interrupts = Interrupts::listen()?;
    let followed = match args.server.clone() {
        Some(server) => there(&server, args.token, &task, &mut interrupts).await?,
        None => here(args, task, &mut interrupts).await?,
    };
    ensure!(follow::all_completed(&followed), "not every session completed");
    Ok(())
}

/// On a running server, which goes on with the task when this process ends.
async fn there(
    server: &str,
    token: Option<String>,
    task: &Value,
    interrupts: &mut Interrupts,
) -> Result<Vec<Followed>> {
    let api = Api::new(server, token::for_server(server, token)?)?;
    let info = api.submit(task).await?;
    let id = info.task_id.clone();
    let followed = interrupts.unless(follow::follow(&api, vec![info])).await;
    let followed = match followed {
        Err(error) if error.is::<Interrupted>() => {
            return Err(error.context(format!(
                "task {id} goes on at {server}; look at it with `polar status {id}`, or end it \
                 with `polar cancel {id}`"
            )));
        }
        followed => followed?,
    };
    follow::print_summary(&followed)?;
    Ok(followed)
}

/// With a server and a node in this process.
async fn here(args: Run, task: Value, interrupts: &mut Interrupts) -> Result<Vec<Followed>> {
    if args.engine.engine.is_none() {
        bail!(
            "where should the agent's calls go? Give an inference server with --engine \
             (try `polar simulate-engine`), or a running rollout server with --server"
        );
    }
    match args.state.clone() {
        Some(state) => {
            let followed = within(&args, state.clone(), task, interrupts).await?;
            writeln!(
                std::io::stdout(),
                "\nkept in {}; look again with `polar up --state` and `polar trajectories`",
                state.display()
            )?;
            Ok(followed)
        }
        None => {
            let mut args = args;
            let node_id = paths::passing_node_id(args.node.node_id.take());
            args.node.node_id = Some(node_id.clone());
            let folder = interrupts.unless(RunFolder::create(&node_id)).await?;
            let state = folder.path().to_owned();
            folder.remove_after(within(&args, state, task, interrupts).await).await
        }
    }
}

async fn within(
    args: &Run,
    state: PathBuf,
    task: Value,
    interrupts: &mut Interrupts,
) -> Result<Vec<Followed>> {
    let engine = interrupts.unless(stack::connect_engine(&args.engine)).await?;
    let token = token::of_this_process()?;
    let secret = token.secret.clone();
    let config = StackConfig {
        api: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0),
        token,
        state,
        node: args.node.clone(),
    };
    with_stack(config, engine, interrupts, async |stack| {
        let api = Api::new(stack.api_url(), Some(secret))?;
        let followed = follow::submit_and_follow(&api, &[task]).await?;
        follow::print_summary(&followed)?;
        Ok(followed)
    })
    .await
}

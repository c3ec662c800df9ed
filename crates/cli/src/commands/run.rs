//! `polar run`: one task file, here or on a running server.

use crate::api::Api;
use crate::args::Run;
use crate::commands::follow;
use crate::stack::{Stack, StackConfig};
use crate::{stack, task_file};
use anyhow::{Result, bail, ensure};
use serde_json::json;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

pub(crate) async fn run(args: Run) -> Result<()> {
    let mut task = task_file::read(&args.task)?;
    if let Some(harness) = &args.harness {
        task_file::set_harness(&mut task, harness)?;
    }
    if let Some(samples) = args.samples {
        task["num_samples"] = json!(samples);
    }
    let (api, stack, temporary) = match &args.server {
        Some(server) => (Api::new(server, args.token.clone())?, None, None),
        None => {
            if args.engine.engine.is_none() {
                bail!(
                    "where should the agent's calls go? Give an inference server with --engine \
                     (try `polar simulate-engine`), or a running rollout server with --server"
                );
            }
            let temporary = match &args.state {
                Some(_) => None,
                None => Some(tempfile::tempdir()?),
            };
            let state = match (&args.state, &temporary) {
                (Some(state), _) => state.clone(),
                (None, Some(folder)) => folder.path().to_owned(),
                (None, None) => bail!("no folder for state"),
            };
            let engine = stack::connect_engine(&args.engine).await?;
            let token = stack::new_token()?;
            let config = StackConfig {
                api: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0),
                token: Some(token.clone()),
                state,
                node: args.node.clone(),
            };
            let stack = Stack::start(config, engine).await?;
            (Api::new(stack.api_url(), Some(token))?, Some(stack), temporary)
        }
    };
    let followed = match follow::unless_interrupted(&api, &[task]).await {
        Ok(followed) => followed,
        Err(error) => {
            if let Some(stack) = stack {
                stack.abandon().await;
            }
            return Err(error);
        }
    };
    follow::print_summary(&followed)?;
    if let Some(stack) = stack {
        if temporary.is_none() {
            writeln!(
                std::io::stdout(),
                "\nkept in {}; look again with `polar up --state` and `polar trajectories`",
                stack.state().display()
            )?;
        }
        stack.shutdown().await;
    }
    ensure!(follow::all_completed(&followed), "not every session completed");
    Ok(())
}

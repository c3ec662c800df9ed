//! The engines of nodes: which there are and how they are, and changes of them while they serve.

use crate::app::App;
use crate::error::{ApiError, ErrorBody};
use crate::extract::{JsonBody, PathId};
use crate::waiting::Wait;
use axum::Json;
use axum::extract::State;
use polar_types::{
    EngineAction, EngineList, EngineOrderReport, EngineOrders, EngineRequest, ErrorClass,
    NodeEngines, NodeId, NodeSeen,
};
use std::sync::Arc;
use std::time::Duration;

/// Longest that a node may take for an order. An engine that is added is probed and brought to the
/// weights that all have.
const PATIENCE: Duration = Duration::from_secs(300);

/// The engines of every node, as the node told last: with each of its requests for work, and at
/// once when it holds sessions and an engine goes or comes back.
#[utoipa::path(get, path = "/api/engines", tag = "engines",
    responses((status = 200, body = EngineList)))]
pub(crate) async fn list(State(app): State<Arc<App>>) -> Result<Json<EngineList>, ApiError> {
    let nodes = app.store.nodes(app.now()).await?.into_iter().map(engines_of).collect();
    Ok(Json(EngineList { nodes }))
}

fn engines_of(seen: NodeSeen) -> NodeEngines {
    let NodeSeen { node, alive, .. } = seen;
    NodeEngines { node_id: node.node_id, alive, engines: node.engines }
}

/// Adds an engine to a running node, or drains, resumes, removes or weighs one. The answer comes
/// when the node has done it, with the node's engines behind it.
#[utoipa::path(post, path = "/api/engines", tag = "engines",
    request_body = EngineRequest,
    responses(
        (status = 200, body = NodeEngines),
        (status = 404, body = ErrorBody, description = "No node has it."),
        (status = 409, body = ErrorBody, description = "The node does not do it; says why."),
        (status = 422, body = ErrorBody, description = "Names every field that is wrong."),
        (status = 504, body = ErrorBody, description = "The node did not answer in time."),
    ))]
pub(crate) async fn change(
    State(app): State<Arc<App>>,
    JsonBody(request): JsonBody<EngineRequest>,
) -> Result<Json<NodeEngines>, ApiError> {
    let problems = request.problems();
    if !problems.is_empty() {
        return Err(ApiError::fields(problems));
    }
    let nodes = app.store.nodes(app.now()).await?;
    let node_id = node_for(&request, nodes)?;
    let mut given = app.engine_orders.give(node_id.clone(), request);
    let done = tokio::select! {
        done = tokio::time::timeout(PATIENCE, given.done()) => done.ok().flatten(),
        () = app.stop.cancelled() => None,
    };
    let Some(done) = done else {
        let message = format!(
            "node {node_id} did not say in time what came of it; see what it has with \
             GET /api/engines"
        );
        return Err(ApiError::new(ErrorClass::Timeout, message));
    };
    match done.problem {
        Some(problem) => Err(ApiError::new(ErrorClass::Conflict, problem)),
        None => Ok(Json(NodeEngines { node_id, alive: true, engines: done.engines })),
    }
}

/// The node that is meant.
fn node_for(request: &EngineRequest, nodes: Vec<NodeSeen>) -> Result<NodeId, ApiError> {
    let alive: Vec<NodeSeen> = nodes.into_iter().filter(|seen| seen.alive).collect();
    let names = |nodes: &[&NodeSeen]| {
        let names: Vec<&str> = nodes.iter().map(|seen| seen.node.node_id.as_str()).collect();
        names.join(", ")
    };
    if let Some(asked) = &request.node_id {
        let found = alive.iter().find(|seen| seen.node.node_id == *asked);
        return found.map(|seen| seen.node.node_id.clone()).ok_or_else(|| {
            let there = names(&alive.iter().collect::<Vec<_>>());
            ApiError::not_found(format!("no node {asked} is alive; there are: {there}"))
        });
    }
    let url = request.url();
    let has_it = |seen: &&NodeSeen| seen.node.engines.iter().any(|engine| engine.engine == url);
    let meant: Vec<&NodeSeen> = match request.action {
        EngineAction::Add => alive.iter().collect(),
        _ => alive.iter().filter(has_it).collect(),
    };
    match meant[..] {
        [only] => Ok(only.node.node_id.clone()),
        [] if alive.is_empty() => Err(ApiError::not_found("no node is alive")),
        [] => {
            Err(ApiError::not_found(format!("no node has an engine {url}; see GET /api/engines")))
        }
        _ => {
            let what = format!("must say which node is meant: {}", names(&meant));
            let example =
                format!("{:?}", meant.first().map_or("", |seen| seen.node.node_id.as_str()));
            Err(ApiError::field("node_id", what, &example))
        }
    }
}

/// Takes what a node has done of its orders, and gives it those that it does not know. The request
/// is held open while there are none, as long as the node likes (50 seconds at most).
#[utoipa::path(post, path = "/api/nodes/{id}/engines", tag = "nodes",
    params(("id" = String, Path)), request_body = EngineOrderReport,
    responses((status = 200, body = EngineOrders), (status = 422, body = ErrorBody)))]
pub(crate) async fn report(
    State(app): State<Arc<App>>,
    PathId(id): PathId<NodeId>,
    JsonBody(report): JsonBody<EngineOrderReport>,
) -> Result<Json<EngineOrders>, ApiError> {
    super::nodes::check_name(&id, &report.node_id, "node_id")?;
    for done in report.done {
        app.engine_orders.note(&id, done);
    }
    let mut news = app.engine_orders.news();
    let wait = Wait::new(report.wait_seconds, app.stop.clone());
    loop {
        news.mark_unchanged();
        let orders = app.engine_orders.of(&id);
        let is_news = orders.iter().any(|order| !report.known.contains(&order.id));
        if is_news || !wait.change(&mut news).await {
            return Ok(Json(EngineOrders { orders }));
        }
    }
}

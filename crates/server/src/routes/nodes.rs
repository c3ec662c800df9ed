//! The node side: handing sessions out, keeping leases alive, taking sessions back.

use crate::app::App;
use crate::error::{ApiError, ErrorBody};
use crate::extract::{JsonBody, PathId};
use crate::waiting::Wait;
use axum::Json;
use axum::extract::State;
use polar_store::{Claimed, StoreError};
use polar_types::{
    CancelCount, CancelWatch, ErrorClass, Lease, LeaseRequest, LeaseResponse, NodeId, NodeList,
    ReleaseItem, ReleaseRequest, ReleaseResponse, RenewRequest, RenewResponse,
};
use std::sync::Arc;
use tokio::sync::oneshot;

/// Most sessions in one answer; a node that takes more asks again.
const MOST_LEASES: u32 = 256;

/// Nodes that were heard of.
#[utoipa::path(get, path = "/api/nodes", tag = "nodes", responses((status = 200, body = NodeList)))]
pub(crate) async fn list(State(app): State<Arc<App>>) -> Result<Json<NodeList>, ApiError> {
    Ok(Json(NodeList { nodes: app.store.nodes(app.now()).await? }))
}

/// Asks for sessions. The request is held open while there are none, as long as the node
/// likes (50 seconds and a third of a lease's time at most), unless the node lacks the room for
/// the next one.
#[utoipa::path(post, path = "/api/nodes/{id}/lease", tag = "nodes",
    params(("id" = String, Path)), request_body = LeaseRequest,
    responses((status = 200, body = LeaseResponse), (status = 422, body = ErrorBody)))]
pub(crate) async fn lease(
    State(app): State<Arc<App>>,
    PathId(id): PathId<NodeId>,
    JsonBody(request): JsonBody<LeaseRequest>,
) -> Result<Json<LeaseResponse>, ApiError> {
    check_name(&id, &request.node.node_id, "node.node_id")?;
    let (send, receive) = oneshot::channel();
    // In a task of its own: a node that hangs up must not leave a lease that nobody holds.
    tokio::spawn(hand_out(Arc::clone(&app), request, send));
    let Claimed { leases, lacks_room } = receive
        .await
        .map_err(|_| ApiError::new(ErrorClass::Unavailable, "the server is ending"))??;
    let ttl_seconds = app.config.limits.lease_ttl.as_secs_f64();
    Ok(Json(LeaseResponse { leases, ttl_seconds, lacks_room }))
}

type Answer = Result<Claimed, StoreError>;

async fn hand_out(app: Arc<App>, request: LeaseRequest, mut send: oneshot::Sender<Answer>) {
    let mut work = app.store.signals().work();
    // Ended in time for the node to ask again before it counts as silent.
    let longest = app.config.limits.lease_ttl.as_secs_f64() / 3.0;
    let wait = Wait::new(request.wait_seconds.min(longest), app.stop.clone());
    let answer = loop {
        work.mark_unchanged();
        // Never given up half-way: what it leases must reach the node or come back.
        let answer = claim(&app, &request).await;
        // A node that lacks room knows when it has more, and this question does not say so.
        let is_nothing = |claimed: &Claimed| claimed.leases.is_empty() && !claimed.lacks_room;
        if request.free == 0 || !answer.as_ref().is_ok_and(is_nothing) {
            break answer;
        }
        tokio::select! {
            changed = wait.change(&mut work) => if !changed { break answer },
            () = send.closed() => return,
        }
    };
    if let Err(Ok(claimed)) = send.send(answer) {
        take_back(&app, &request, claimed.leases).await;
    }
}

async fn claim(app: &Arc<App>, request: &LeaseRequest) -> Answer {
    app.store.claim(&request.node, request.free.min(MOST_LEASES), app.now()).await
}

async fn take_back(app: &App, request: &LeaseRequest, leases: Vec<Lease>) {
    if leases.is_empty() {
        return;
    }
    let items = leases
        .into_iter()
        .map(|lease| ReleaseItem { session_id: lease.session_id, epoch: lease.epoch })
        .collect();
    let request = ReleaseRequest {
        node_id: request.node.node_id.clone(),
        items,
        reason: "the node hung up before it had the lease".to_owned(),
        failed: false,
    };
    if let Err(error) = app.store.release(&request, app.now()).await {
        tracing::warn!(%error, "leases that were not delivered will expire");
    }
}

/// Renews all leases of a node, and says which are lost or to be cancelled.
#[utoipa::path(post, path = "/api/nodes/{id}/renew", tag = "nodes",
    params(("id" = String, Path)), request_body = RenewRequest,
    responses((status = 200, body = RenewResponse), (status = 422, body = ErrorBody)))]
pub(crate) async fn renew(
    State(app): State<Arc<App>>,
    PathId(id): PathId<NodeId>,
    JsonBody(request): JsonBody<RenewRequest>,
) -> Result<Json<RenewResponse>, ApiError> {
    check_name(&id, &request.node.node_id, "node.node_id")?;
    let answer = app.store.renew(&request, app.now()).await?;
    if !answer.lost.is_empty() {
        // Mostly of sessions that ended while the node asked; the node says what it gives up.
        tracing::debug!(node = %id, lost = answer.lost.len(), "a node held leases it had lost");
    }
    Ok(Json(answer))
}

/// Tells a node that running sessions were cancelled, so that it renews and learns which.
/// The request is held open until there are some it does not know of, as long as the node
/// likes (50 seconds at most).
#[utoipa::path(post, path = "/api/nodes/{id}/cancels", tag = "nodes",
    params(("id" = String, Path)), request_body = CancelWatch,
    responses((status = 200, body = CancelCount), (status = 422, body = ErrorBody)))]
pub(crate) async fn cancels(
    State(app): State<Arc<App>>,
    PathId(_id): PathId<NodeId>,
    JsonBody(watch): JsonBody<CancelWatch>,
) -> Json<CancelCount> {
    let mut signal = app.store.signals().cancels();
    let wait = Wait::new(watch.wait_seconds, app.stop.clone());
    loop {
        let count = *signal.borrow_and_update();
        if watch.known != Some(count) || !wait.change(&mut signal).await {
            return Json(CancelCount { count });
        }
    }
}

/// Gives sessions back that the node has stopped and not finished.
#[utoipa::path(post, path = "/api/nodes/{id}/release", tag = "nodes",
    params(("id" = String, Path)), request_body = ReleaseRequest,
    responses((status = 200, body = ReleaseResponse), (status = 422, body = ErrorBody)))]
pub(crate) async fn release(
    State(app): State<Arc<App>>,
    PathId(id): PathId<NodeId>,
    JsonBody(request): JsonBody<ReleaseRequest>,
) -> Result<Json<ReleaseResponse>, ApiError> {
    check_name(&id, &request.node_id, "node_id")?;
    let released = app.store.release(&request, app.now()).await?;
    tracing::info!(node = %id, sessions = released.len(), reason = %request.reason, "released");
    Ok(Json(ReleaseResponse { released }))
}

pub(super) fn check_name(path: &NodeId, body: &NodeId, field: &str) -> Result<(), ApiError> {
    if path == body {
        return Ok(());
    }
    let what = format!("must be {path}, as in the path, not {body}");
    Err(ApiError::field(field, what, &format!("{:?}", path.as_str())))
}

//! The routes, by who may call them.

mod about;
mod batches;
mod blobs;
mod engines;
mod events;
mod nodes;
mod regrades;
mod sessions;
mod tasks;
mod trajectories;
mod weights;

pub(crate) use blobs::hash_of;
pub(crate) use sessions::trajectory_artifact;
pub(crate) use tasks::body_hash;

use crate::app::App;
use crate::published::routes as published;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// For everyone.
pub(crate) fn open() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(about::health))
        .routes(routes!(about::version))
        .routes(routes!(published::health))
}

/// For clients: trainers, people, the dashboard.
pub(crate) fn control() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(tasks::submit, tasks::list))
        .routes(routes!(tasks::get, tasks::cancel))
        .routes(routes!(tasks::sessions))
        .routes(routes!(regrades::regrade))
        .routes(routes!(trajectories::of_task))
        .routes(routes!(sessions::get))
        .routes(routes!(sessions::trajectory))
        .routes(routes!(sessions::calls))
        .routes(routes!(sessions::logs))
        .routes(routes!(batches::next))
        .routes(routes!(batches::get))
        .routes(routes!(batches::trajectories))
        .routes(routes!(batches::queues))
        .routes(routes!(events::read))
        .routes(routes!(nodes::list))
        .routes(routes!(engines::change, engines::list))
        .routes(routes!(weights::push, weights::list))
        .routes(routes!(weights::get))
        .routes(routes!(about::metrics))
        .routes(routes!(published::submit))
        .routes(routes!(published::read, published::cancel))
        .routes(routes!(published::status))
        .routes(routes!(published::list))
        .routes(routes!(published::sessions))
}

/// For nodes.
pub(crate) fn node() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(nodes::lease))
        .routes(routes!(nodes::renew))
        .routes(routes!(nodes::cancels))
        .routes(routes!(nodes::release))
        .routes(routes!(weights::report))
        .routes(routes!(engines::report))
        .routes(routes!(sessions::result))
        .routes(routes!(blobs::put))
}

/// For clients and nodes.
pub(crate) fn either() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(blobs::get))
}

//! What every request handler shares, and the routes put together.

use crate::config::ServerConfig;
use crate::engine_orders::OrderDesk;
use crate::error::ApiError;
use crate::metrics::Metrics;
use crate::published::Tombstones;
use crate::{auth, routes};
use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state};
use http::{Method, StatusCode, Uri};
use jiff::Timestamp;
use polar_blobs::BlobStore;
use polar_store::TaskStore;
use polar_types::ErrorClass;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{ComponentsBuilder, Info, OpenApi};
use utoipa_axum::router::OpenApiRouter;

/// What every request handler shares.
pub(crate) struct App {
    pub(crate) store: Arc<dyn TaskStore>,
    pub(crate) blobs: BlobStore,
    pub(crate) config: ServerConfig,
    pub(crate) metrics: Metrics,
    pub(crate) tombstones: Tombstones,
    pub(crate) engine_orders: OrderDesk,
    /// Cancelled when the server ends.
    pub(crate) stop: CancellationToken,
}

impl App {
    pub(crate) fn now(&self) -> Timestamp {
        self.config.clock.now()
    }
}

/// What the OpenAPI document calls the token.
const BEARER: &str = "bearer";

/// The whole API.
pub(crate) fn router(app: Arc<App>) -> Router {
    let (router, api) = with_guards(&app).split_for_parts();
    let document = axum::routing::get(move || {
        let api = api.clone();
        async move { axum::Json(api) }
    });
    router
        .route("/api/openapi.json", document)
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .layer(from_fn_with_state(Arc::clone(&app), auth::refuse_foreign_pages))
        // Each handler has its own limit, so that blobs may be larger than the rest.
        .layer(axum::extract::DefaultBodyLimit::disable())
        .layer(from_fn(polar_http::read_to_the_end_before_refusing))
        .with_state(app)
}

fn with_guards(app: &Arc<App>) -> OpenApiRouter<Arc<App>> {
    let control = from_fn_with_state(Arc::clone(app), auth::control);
    let node = from_fn_with_state(Arc::clone(app), auth::node);
    let either = from_fn_with_state(Arc::clone(app), auth::either);
    described()
        .merge(routes::open())
        .merge(routes::control().route_layer(control))
        .merge(routes::node().route_layer(node))
        .merge(routes::either().route_layer(either))
}

/// The OpenAPI document, generated from the routes.
pub fn openapi() -> OpenApi {
    described()
        .merge(routes::open())
        .merge(routes::control())
        .merge(routes::node())
        .merge(routes::either())
        .into_openapi()
}

fn described() -> OpenApiRouter<Arc<App>> {
    let info = Info::builder()
        .title("Polar rollout server")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(
            "Tasks in, sessions handed to nodes, trajectories out. Errors have one shape: \
             {\"error\": {\"code\", \"message\", \"problems\"}}.",
        ))
        .build();
    let token = Http::builder()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some("The server's token; a server that has none asks for none."))
        .build();
    let schemes =
        ComponentsBuilder::new().security_scheme(BEARER, SecurityScheme::Http(token)).build();
    let needed = [SecurityRequirement::new::<_, [&str; 0], &str>(BEARER, [])];
    OpenApiRouter::with_openapi(
        OpenApi::builder().info(info).components(Some(schemes)).security(Some(needed)).build(),
    )
}

async fn no_such_path(method: Method, uri: Uri) -> ApiError {
    let message = format!("there is no {method} {}; see /api/openapi.json", uri.path());
    ApiError::not_found(message)
}

async fn no_such_method(method: Method, uri: Uri) -> ApiError {
    ApiError::with_status(
        StatusCode::METHOD_NOT_ALLOWED,
        ErrorClass::Invalid,
        format!("{} does not take {method}; see /api/openapi.json", uri.path()),
    )
}

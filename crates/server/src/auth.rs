//! Who may call: bearer tokens, and the guard against web pages.
//!
//! A server without a token listens on loopback only, yet a web page in a browser on the
//! same machine can reach that too. Such requests carry an `Origin`, or a `Host` that is
//! not this machine's; both are refused.

use crate::app::App;
use crate::config::ServerConfig;
use crate::error::ApiError;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use base64::Engine as _;
use http::{HeaderMap, StatusCode, header};
use polar_types::ErrorClass;
use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;
use subtle::{Choice, ConstantTimeEq};

/// By which clients of the published Polar say the control token.
const CONTROL_TOKEN_HEADER: &str = "x-polar-control-token";

/// Lets in who has the control token.
pub(crate) async fn control(
    State(app): State<Arc<App>>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let control = app.config.control_token.as_deref();
    check(request.headers(), &[control], place(&app.config))?;
    Ok(next.run(request).await)
}

/// Lets in who has the node token.
pub(crate) async fn node(
    State(app): State<Arc<App>>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let config = &app.config;
    let node = config.node_token.as_deref().or(config.control_token.as_deref());
    let place = place(config).filter(|_| config.node_token.is_none());
    check(request.headers(), &[node], place)?;
    Ok(next.run(request).await)
}

/// Lets in who has either token.
pub(crate) async fn either(
    State(app): State<Arc<App>>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let config = &app.config;
    // With a node token alone, the control API is open, and so is what it can read.
    let control = config.control_token.as_deref();
    let node = config.node_token.as_deref().or(control).filter(|_| control.is_some());
    check(request.headers(), &[control, node], place(config))?;
    Ok(next.run(request).await)
}

/// Refuses requests that a web page of elsewhere makes a browser send.
pub(crate) async fn refuse_foreign_pages(
    State(app): State<Arc<App>>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let headers = request.headers();
    let host = text(headers, header::HOST).unwrap_or_default();
    let foreign_origin = text(headers, header::ORIGIN)
        .is_some_and(|origin| origin.split_once("://").is_none_or(|(_, from)| from != host));
    let foreign_host = app.config.control_token.is_none() && !is_this_machine(host);
    if foreign_origin || foreign_host {
        return Err(ApiError::with_status(
            StatusCode::FORBIDDEN,
            ErrorClass::Unauthenticated,
            "requests from web pages of other origins, or under another host name, are refused; \
             call the server by its IP address or as localhost, or set a control token",
        ));
    }
    Ok(next.run(request).await)
}

fn is_this_machine(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || bare.parse::<IpAddr>().is_ok()
}

fn place(config: &ServerConfig) -> Option<&str> {
    config.control_token_place.as_deref()
}

/// `place` is where a caller finds a token that is accepted.
fn check(
    headers: &HeaderMap,
    accepted: &[Option<&str>],
    place: Option<&str>,
) -> Result<(), ApiError> {
    let tokens: Vec<&str> = accepted.iter().flatten().copied().collect();
    if tokens.is_empty() {
        return Ok(());
    }
    let given = given(headers);
    let refused = |what: &str| {
        let place = place.map_or_else(String::new, |place| {
            format!("; it is in {place} of the user who started the server, on its machine")
        });
        ApiError::new(ErrorClass::Unauthenticated, format!("{what}{place}"))
    };
    let Some(given) = given.as_deref() else {
        return Err(refused(
            "this needs the server's token; send it as `Authorization: Bearer TOKEN`, or set \
             POLAR_TOKEN for `polar` and its SDK",
        ));
    };
    // All are compared, in time that does not depend on where they differ.
    let matches = tokens
        .iter()
        .fold(Choice::from(0), |any, token| any | token.as_bytes().ct_eq(given.as_bytes()));
    if bool::from(matches) { Ok(()) } else { Err(refused("the token is not the server's")) }
}

/// The token in a request: as a bearer token, in the header that clients of the published Polar
/// use, or as the password of a URL, for clients that know of no tokens at all.
fn given(headers: &HeaderMap) -> Option<Cow<'_, str>> {
    let named = headers.get(CONTROL_TOKEN_HEADER).and_then(|value| value.to_str().ok());
    if let Some(token) = named {
        return Some(Cow::Borrowed(token.trim()));
    }
    let (scheme, value) = text(headers, header::AUTHORIZATION)?.split_once(' ')?;
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(Cow::Borrowed(value.trim()));
    }
    let decoder = base64::engine::general_purpose::STANDARD;
    let basic = scheme.eq_ignore_ascii_case("basic").then(|| decoder.decode(value.trim()).ok())?;
    let pair = String::from_utf8(basic?).ok()?;
    pair.split_once(':').map(|(_, password)| Cow::Owned(password.to_owned()))
}

fn text(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

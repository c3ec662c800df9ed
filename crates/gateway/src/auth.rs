//! Which session a request belongs to.
//!
//! The secret is accepted where each harness can put it: in the path
//! (`/s/<secret>/…`), as the API key of any dialect (`Authorization: Bearer`,
//! `x-api-key`), or in `polar-session`. The path wins, since it is the one place that
//! no harness overrides with a key of its own.

use axum::http::HeaderMap;

/// A request's path, split into who and what.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Addressed<'a> {
    /// Secret found in the path.
    pub(crate) secret: Option<&'a str>,
    /// The dialect's own path, without `/v1`: `/chat/completions`, `/messages`, `/`.
    pub(crate) route: &'a str,
}

pub(crate) fn split_path(path: &str) -> Addressed<'_> {
    let (secret, rest) = match path.strip_prefix("/s/") {
        Some(tail) => match tail.split_once('/') {
            Some((secret, _)) => (Some(secret), &tail[secret.len()..]),
            None => (Some(tail), "/"),
        },
        None => (None, path),
    };
    let mut route = rest;
    // Some clients add a version to a base URL that already ends in one.
    while let Some(tail) = route.strip_prefix("/v1") {
        if !(tail.is_empty() || tail.starts_with('/')) {
            break;
        }
        route = tail;
    }
    let route = match route.trim_end_matches('/') {
        "" => "/",
        trimmed => trimmed,
    };
    Addressed { secret, route }
}

pub(crate) fn header_secret(headers: &HeaderMap) -> Option<&str> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    text("polar-session").or_else(|| text("x-api-key")).or_else(|| {
        let value = text("authorization")?;
        let (scheme, token) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_split_into_secret_and_route() {
        for (path, secret, route) in [
            ("/v1/chat/completions", None, "/chat/completions"),
            ("/chat/completions", None, "/chat/completions"),
            ("/v1/v1/messages", None, "/messages"),
            ("/s/abc/v1/messages", Some("abc"), "/messages"),
            ("/s/abc/v1/messages/count_tokens", Some("abc"), "/messages/count_tokens"),
            ("/s/abc", Some("abc"), "/"),
            ("/s/abc/", Some("abc"), "/"),
            ("/", None, "/"),
            ("/v1", None, "/"),
            ("/v10/models", None, "/v10/models"),
            ("/v1/models/", None, "/models"),
        ] {
            assert_eq!(split_path(path), Addressed { secret, route }, "{path}");
        }
    }

    #[test]
    fn the_secret_is_found_in_each_header() {
        for (name, value) in [
            ("authorization", "Bearer k"),
            ("authorization", "bearer k"),
            ("x-api-key", "k"),
            ("polar-session", "k"),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().unwrap());
            assert_eq!(header_secret(&headers), Some("k"), "{name}: {value}");
        }
        assert_eq!(header_secret(&HeaderMap::new()), None);
    }
}

//! Which session a request belongs to.
//!
//! The secret is accepted where each harness can put it: in the path
//! (`/s/<secret>/…`), as the API key of any dialect (`Authorization: Bearer`, `x-api-key`,
//! `x-goog-api-key`, `?key=`), or in `polar-session`. The path wins, since it is the one place
//! that no harness overrides with a key of its own.

use axum::http::HeaderMap;

/// A request's path, split into who and what.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Addressed<'a> {
    /// Secret found in the path.
    pub(crate) secret: Option<&'a str>,
    /// Whether the version in the path is one that only Google's API has.
    pub(crate) google: bool,
    /// The dialect's own path, without its version: `/chat/completions`, `/messages`, `/`.
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
    let mut google = false;
    // Some clients add a version to a base URL that already ends in one.
    while let Some((version, tail)) = version(route) {
        google |= version != "/v1";
        route = tail;
    }
    let route = match route.trim_end_matches('/') {
        "" => "/",
        trimmed => trimmed,
    };
    Addressed { secret, google, route }
}

/// The version that a path begins with, and what follows.
fn version(path: &str) -> Option<(&str, &str)> {
    ["/v1", "/v1beta", "/v1alpha"].into_iter().find_map(|version| {
        let tail = path.strip_prefix(version)?;
        (tail.is_empty() || tail.starts_with('/')).then_some((version, tail))
    })
}

pub(crate) fn header_secret(headers: &HeaderMap) -> Option<&str> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let key = ["polar-session", "x-api-key", "x-goog-api-key"].into_iter().find_map(text);
    key.or_else(|| {
        let value = text("authorization")?;
        let (scheme, token) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    })
}

/// The value of `key` in a query. A secret has no letters that a query would escape.
pub(crate) fn query_secret(query: Option<&str>) -> Option<&str> {
    query_value(query, "key")
}

/// The value of a parameter in a query, as it stands there.
pub(crate) fn query_value<'a>(query: Option<&'a str>, name: &str) -> Option<&'a str> {
    query?.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
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
            let google = false;
            assert_eq!(split_path(path), Addressed { secret, google, route }, "{path}");
        }
    }

    #[test]
    fn versions_of_google_are_told_from_others() {
        for (path, secret, google, route) in [
            ("/v1beta/models/m:generateContent", None, true, "/models/m:generateContent"),
            ("/v1alpha/models", None, true, "/models"),
            ("/s/abc/v1beta/models", Some("abc"), true, "/models"),
            ("/v1/models/m:countTokens", None, false, "/models/m:countTokens"),
            ("/v1beta", None, true, "/"),
            ("/v1betamax/models", None, false, "/v1betamax/models"),
        ] {
            assert_eq!(split_path(path), Addressed { secret, google, route }, "{path}");
        }
    }

    #[test]
    fn the_secret_is_found_in_the_query() {
        assert_eq!(query_secret(Some("alt=sse&key=k")), Some("k"));
        assert_eq!(query_secret(Some("key=k")), Some("k"));
        assert_eq!(query_secret(Some("monkey=k&alt=sse")), None);
        assert_eq!(query_secret(None), None);
    }

    #[test]
    fn the_secret_is_found_in_each_header() {
        for (name, value) in [
            ("authorization", "Bearer k"),
            ("authorization", "bearer k"),
            ("x-api-key", "k"),
            ("x-goog-api-key", "k"),
            ("polar-session", "k"),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().unwrap());
            assert_eq!(header_secret(&headers), Some("k"), "{name}: {value}");
        }
        assert_eq!(header_secret(&HeaderMap::new()), None);
    }
}

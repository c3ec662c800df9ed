//! What an address of Google's dialect says: the model, what to do, and the form of a stream.
//! In other dialects all of it stands in the body.

use crate::auth::query_value;
use polar_convo::{GoogleFraming, Request};

/// A `POST` to `/models/{model}:{method}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GoogleAddress {
    model: String,
    pub(crate) method: GoogleMethod,
}

/// What is asked of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GoogleMethod {
    Generate,
    Stream(GoogleFraming),
    CountTokens,
}

impl GoogleAddress {
    /// Reads a path without its version; `None` for any other path.
    pub(crate) fn parse(route: &str, query: Option<&str>) -> Option<Self> {
        let (model, method) = route.strip_prefix("/models/")?.rsplit_once(':')?;
        let method = match method {
            "generateContent" => GoogleMethod::Generate,
            "streamGenerateContent" => GoogleMethod::Stream(framing(query)),
            "countTokens" => GoogleMethod::CountTokens,
            _ => return None,
        };
        (!model.is_empty()).then(|| Self { model: model.to_owned(), method })
    }

    /// Puts into a request what its body does not say.
    pub(crate) fn complete(self, request: &mut Request) {
        request.model = self.model;
        if let GoogleMethod::Stream(framing) = self.method {
            request.stream = true;
            request.google.framing = framing;
        }
    }
}

fn framing(query: Option<&str>) -> GoogleFraming {
    match query_value(query, "alt") {
        Some("sse") => GoogleFraming::Events,
        _ => GoogleFraming::Array,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_says_model_method_and_framing() {
        let parse = |route, query| GoogleAddress::parse(route, query).map(|a| (a.model, a.method));
        let found = |model: &str, method| Some((model.to_owned(), method));
        assert_eq!(
            parse("/models/gemini-2.5-pro:generateContent", None),
            found("gemini-2.5-pro", GoogleMethod::Generate)
        );
        let stream = "/models/Qwen/Qwen3:8b:streamGenerateContent";
        let events = GoogleMethod::Stream(GoogleFraming::Events);
        assert_eq!(parse(stream, Some("key=k&alt=sse")), found("Qwen/Qwen3:8b", events));
        let array = GoogleMethod::Stream(GoogleFraming::Array);
        assert_eq!(parse(stream, Some("alt=json")), found("Qwen/Qwen3:8b", array));
        assert_eq!(parse(stream, None), found("Qwen/Qwen3:8b", array));
        assert_eq!(parse("/models/m:countTokens", None), found("m", GoogleMethod::CountTokens));
        for other in
            ["/models/m", "/models/m:embedContent", "/models/:generateContent", "/messages"]
        {
            assert_eq!(parse(other, None), None, "{other}");
        }
    }
}

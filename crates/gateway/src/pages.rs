//! What is not a generation: liveness, the model list, token counts. None of these is
//! ever recorded.

use crate::Gateway;
use crate::prompt::Prompt;
use crate::reply::engine_failure;
use crate::session::{Session, lock};
use axum::body::Body;
use axum::http::{HeaderValue, Request as HttpRequest, Response, header};
use polar_convo::{
    ApiError, Dialect, ModelInfo, chat_messages, chat_tools, model_body, models_body,
    token_count_body,
};
use polar_types::ErrorClass;

pub(crate) fn alive() -> Response<Body> {
    json(br#"{"status":"ok","service":"polar-gateway"}"#.to_vec())
}

pub(crate) fn models(
    gateway: &Gateway,
    dialect: Dialect,
    one: Option<&str>,
) -> Result<Response<Body>, ApiError> {
    let info = gateway.engine_info();
    let card = ModelInfo { id: info.model.clone(), context_window: info.context_window };
    match one {
        None => Ok(json(models_body(dialect, &[card]))),
        Some(id) if id == card.id => Ok(json(model_body(dialect, &card))),
        Some(id) => Err(ApiError::new(
            ErrorClass::NotFound,
            format!("no model {id:?}; the engine serves {:?}", card.id),
        )),
    }
}

pub(crate) async fn count_tokens(
    gateway: &Gateway,
    session: &Session,
    dialect: Dialect,
    http: HttpRequest<Body>,
) -> Result<Response<Body>, ApiError> {
    let (body, _held) = gateway.read_body(session, http).await?;
    let mut request = match dialect {
        // May refer to earlier replies of the session.
        Dialect::Responses => lock(&session.responses).decode_request(&body)?,
        Dialect::Chat | Dialect::Messages | Dialect::Google => {
            dialect.decode_count_request(&body)?
        }
    };
    // The prompt that a call with it would have.
    session.normaliser.apply(&mut request);
    lock(&session.turns).restore(&mut request, session.history);
    let planned = match &session.prompts {
        Some(prompts) => {
            Some(prompts.plan(&request, chat_messages(&request), chat_tools(&request)).await?)
        }
        None => None,
    };
    let count = match planned {
        // Only the engine knows how much a picture takes.
        Some(Prompt::Ids { plan, pictures }) if pictures.is_empty() => plan.ids.len() as u64,
        _ => {
            let counted = gateway.engines.any().count_tokens(&request).await;
            counted.map_err(|error| engine_failure(&error))?
        }
    };
    Ok(json(token_count_body(dialect, count)))
}

fn json(body: Vec<u8>) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

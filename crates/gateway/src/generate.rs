//! From a harness's HTTP request to its answer.

use crate::auth::{Addressed, header_secret, query_secret, split_path};
use crate::call::OpenCall;
use crate::google::{GoogleAddress, GoogleMethod};
use crate::outage::Patience;
use crate::reply::{Answered, Driver, Step, StreamBody, UnaryBody};
use crate::session::{Session, lock};
use crate::start::Start;
use crate::{Gateway, pages};
use axum::body::Body;
use axum::extract::State;
use axum::http::{
    HeaderName, HeaderValue, Method, Request as HttpRequest, Response, StatusCode, header,
};
use jiff::Timestamp;
use polar_convo::{
    ApiError, Dialect, GoogleFraming, Reply, ReplyHead, SampledToken, StreamEncoder, apply_pins,
    chat_messages, chat_tools, error_response, unary_body,
};
use polar_engine::GenerateRequest;
use polar_types::ErrorClass;
use std::sync::Arc;

/// What a path asks for.
enum Route {
    Generate(Dialect),
    /// A generation or a count; the address says more.
    Google(GoogleAddress),
    CountTokens(Dialect),
    Models(Option<String>),
    /// What OpenAI's API has and is not served here.
    NotServed(&'static str),
    /// A reply told earlier.
    ToldReply,
    /// Responses over a WebSocket.
    ResponsesSocket,
    Alive,
    Unknown,
}

fn route(addressed: &Addressed<'_>, request: &HttpRequest<Body>) -> Route {
    let (method, path) = (request.method(), addressed.route);
    let get = matches!(*method, Method::GET | Method::HEAD);
    match path {
        "/chat/completions" if *method == Method::POST => Route::Generate(Dialect::Chat),
        "/messages" if *method == Method::POST => Route::Generate(Dialect::Messages),
        "/responses" if *method == Method::POST => Route::Generate(Dialect::Responses),
        "/responses" if request.headers().contains_key(header::UPGRADE) => Route::ResponsesSocket,
        "/messages/count_tokens" if *method == Method::POST => {
            Route::CountTokens(Dialect::Messages)
        }
        "/responses/input_tokens" if *method == Method::POST => {
            Route::CountTokens(Dialect::Responses)
        }
        "/completions" if *method == Method::POST => Route::NotServed(
            "text completions are not served: a turn of an agent is a conversation, which the \
             engine puts into tokens by the model's own template; send POST /v1/chat/completions",
        ),
        "/embeddings" if *method == Method::POST => Route::NotServed(
            "embeddings are not served: the engine behind this gateway samples text; give the \
             agent another base URL for its embedding model, or switch off what needs one",
        ),
        "/models" if get => Route::Models(None),
        "/" | "/health" | "/api/hello" if get => Route::Alive,
        _ => match path.strip_prefix("/models/") {
            Some(model) if get => Route::Models(Some(model.to_owned())),
            _ if path.starts_with("/responses/resp_") => Route::ToldReply,
            _ => match GoogleAddress::parse(path, request.uri().query()) {
                Some(address) if *method == Method::POST => Route::Google(address),
                _ => Route::Unknown,
            },
        },
    }
}

/// The dialect to speak where the route does not tell: Anthropic's clients always say
/// which version of their API they mean, and Google's have a version or a key of their own.
fn spoken(addressed: &Addressed<'_>, request: &HttpRequest<Body>) -> Dialect {
    let path = addressed.route;
    let has = |name: &str| request.headers().contains_key(name);
    let asks_a_model = path.starts_with("/models/") && *request.method() == Method::POST;
    if path == "/responses" || path.starts_with("/responses/") {
        Dialect::Responses
    } else if path.starts_with("/messages") || has("anthropic-version") {
        Dialect::Messages
    } else if addressed.google || asks_a_model || has("x-goog-api-key") {
        Dialect::Google
    } else {
        Dialect::Chat
    }
}

pub(crate) async fn dispatch(
    State(gateway): State<Arc<Gateway>>,
    request: HttpRequest<Body>,
) -> Response<Body> {
    let path = request.uri().path().to_owned();
    let addressed = split_path(&path);
    let dialect = spoken(&addressed, &request);
    let route = route(&addressed, &request);
    let query = request.uri().query();
    if matches!(route, Route::Alive) {
        return pages::alive();
    }
    let secret =
        addressed.secret.or_else(|| header_secret(request.headers())).or(query_secret(query));
    let Some(session) = secret.and_then(|secret| gateway.session(secret)) else {
        return refuse(dialect, &unknown_secret(secret.is_some()));
    };
    match route {
        Route::Generate(dialect) => generate(&gateway, session, dialect, None, request)
            .await
            .unwrap_or_else(|error| refuse(dialect, &error)),
        Route::Google(GoogleAddress { method: GoogleMethod::CountTokens, .. }) => {
            pages::count_tokens(&gateway, &session, Dialect::Google, request)
                .await
                .unwrap_or_else(|error| refuse(dialect, &error))
        }
        Route::Google(address) => {
            generate(&gateway, session, Dialect::Google, Some(address), request)
                .await
                .unwrap_or_else(|error| refuse(dialect, &error))
        }
        Route::CountTokens(dialect) => pages::count_tokens(&gateway, &session, dialect, request)
            .await
            .unwrap_or_else(|error| refuse(dialect, &error)),
        Route::Models(model) => pages::models(&gateway, dialect, model.as_deref())
            .unwrap_or_else(|error| refuse(dialect, &error)),
        Route::NotServed(why) => refuse(dialect, &ApiError::new(ErrorClass::NotFound, why)),
        Route::ToldReply => refuse(dialect, &told_reply(addressed.route)),
        Route::ResponsesSocket => refuse_socket(),
        Route::Alive | Route::Unknown => {
            let error = ApiError::unknown_route(request.method().as_str(), addressed.route);
            refuse(dialect, &error)
        }
    }
}

fn unknown_secret(given: bool) -> ApiError {
    let message = if given {
        "the API key is not the secret of an open session; it is valid only while its session runs"
    } else {
        "no session secret: give it as the API key, or put /s/<secret> in front of the path"
    };
    ApiError::new(ErrorClass::Unauthenticated, message)
}

fn told_reply(path: &str) -> ApiError {
    ApiError::new(
        ErrorClass::NotFound,
        format!(
            "/v1{path} is not served: a reply is told once, on the connection that asked for it, \
             and kept only to be gone on from with `previous_response_id`"
        ),
    )
}

/// Codex tries a WebSocket first when it takes the gateway for OpenAI's own. On this status it
/// goes on over HTTP at once; on others it tries again for seconds.
fn refuse_socket() -> Response<Body> {
    let error = ApiError::new(
        ErrorClass::Invalid,
        "replies are not told over a WebSocket; send POST /v1/responses",
    );
    let mut response = refuse(Dialect::Responses, &error);
    *response.status_mut() = StatusCode::UPGRADE_REQUIRED;
    response.headers_mut().insert(header::UPGRADE, HeaderValue::from_static("HTTP/1.1"));
    response
}

async fn generate(
    gateway: &Arc<Gateway>,
    session: Arc<Session>,
    dialect: Dialect,
    address: Option<GoogleAddress>,
    http: HttpRequest<Body>,
) -> Result<Response<Body>, ApiError> {
    let evidence = session.evidence(http.headers());
    let (body, held) = gateway.read_body(&session, http).await?;
    let mut request = match dialect {
        // May refer to earlier replies of the session.
        Dialect::Responses => lock(&session.responses).decode_request(&body)?,
        Dialect::Chat | Dialect::Messages | Dialect::Google => dialect.decode_request(&body)?,
    };
    if let Some(address) = address {
        address.complete(&mut request);
    }
    // First, since a turn is known by what it answers.
    let normalised = session.normaliser.apply(&mut request);
    lock(&session.turns).restore(&mut request, session.history);
    apply_pins(&mut request.sampling, &session.pins);
    request.sampling.say_defaults();

    let info = gateway.engines.info();
    let request_id = format!("polar-{}", random_id());
    let (messages, tools) = (chat_messages(&request), chat_tools(&request));
    let to_plan = session.prompts.is_some().then(|| (messages.clone(), tools.clone()));
    let call = OpenCall::new(&request, messages, tools, info, evidence, &normalised)
        .asked_as(&request_id)
        .holding(held);
    let (key, call) = session
        .begin(call, gateway.config.max_calls_per_session)
        .map_err(|class| begin_refused(class, gateway.config.max_calls_per_session))?;
    let head = ReplyHead {
        id: reply_id(dialect),
        model: request.model.clone(),
        created: Timestamp::now().as_second(),
        prompt_tokens: None,
        chat: request.chat,
        responses: request.responses.clone(),
        google: request.google,
    };
    let answered = Answered::new(&session, &head, &request);
    let mut encoder = StreamEncoder::new(dialect, head.clone());
    let stream = request.stream;
    let name = HeaderValue::from_str(&request_id);
    let start = Start {
        engines: gateway.engines.clone(),
        session: session.clone(),
        call: call.clone(),
        prompt: answered.prompt(),
        asked: GenerateRequest { request, request_id },
        to_plan,
        patience: Patience::of(gateway.config.engine_wait),
    };
    let start = Box::pin(start.run());
    let mut driver =
        Driver::new(session, (key, call), answered, start, gateway.config.call_timeout);
    let answer = if stream {
        match driver.accepted(gateway.config.header_wait).await {
            Ok(()) => {
                let body = StreamBody::new(driver, encoder, gateway.config.keep_alive);
                Ok(stream_response(&head, Body::from_stream(body)))
            }
            Err(error) if encoder.tells_refusal(&error) => {
                let mut told = Vec::new();
                encoder.error(&error, &mut told);
                Ok(stream_response(&head, Body::from(told)))
            }
            Err(error) => Err(error),
        }
    } else {
        unary(dialect, head, driver).await
    };
    let mut response = answer.unwrap_or_else(|error| refuse(dialect, &error));
    if let (Some(header), Ok(name)) = (request_id_header(dialect), name) {
        response.headers_mut().insert(header, name);
    }
    Ok(response)
}

fn stream_response(head: &ReplyHead, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    let content_type = match head.google.framing {
        GoogleFraming::Events => "text/event-stream",
        GoogleFraming::Array => "application/json",
    };
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

async fn unary(
    dialect: Dialect,
    head: ReplyHead,
    mut driver: Driver,
) -> Result<Response<Body>, ApiError> {
    let mut reply = Reply::default();
    let end = loop {
        match driver.next().await {
            Step::Prompt { .. } => {}
            Step::Chunk { events, ids, logprobs } => {
                events.iter().for_each(|event| reply.push(event));
                if head.chat.logprobs {
                    reply.tokens.extend(SampledToken::zip(&ids, &logprobs));
                }
            }
            Step::End(end) => break end,
            Step::Failed(error) => return Err(error),
        }
    };
    if let Some(error) = end.as_error().or_else(|| head.untellable(&reply)) {
        return Err(error);
    }
    let body = unary_body(dialect, &head, &reply, &end);
    let length = body.len();
    let mut response = Response::new(Body::from_stream(UnaryBody::new(driver, body)));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    Ok(response)
}

fn begin_refused(class: ErrorClass, limit: usize) -> ApiError {
    match class {
        ErrorClass::RateLimited => {
            ApiError::new(class, format!("this session already has {limit} calls running"))
                .retry_after(1.0)
        }
        _ => ApiError::new(class, "the session is closing"),
    }
}

/// The error in the dialect's shape.
pub(crate) fn refuse(dialect: Dialect, error: &ApiError) -> Response<Body> {
    let reply = error_response(dialect, error);
    let mut response = Response::new(Body::from(reply.body));
    *response.status_mut() =
        StatusCode::from_u16(reply.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    for (name, value) in reply.headers {
        if let Ok(value) = HeaderValue::from_str(&value) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

/// Where a dialect's vendor names a call. Qwen Code repeats a call that an error broke off in the
/// stream only where it has a name.
fn request_id_header(dialect: Dialect) -> Option<HeaderName> {
    match dialect {
        Dialect::Chat | Dialect::Responses => Some(HeaderName::from_static("x-request-id")),
        Dialect::Messages => Some(HeaderName::from_static("request-id")),
        Dialect::Google => None,
    }
}

/// A fresh id in the form the dialect's clients know.
fn reply_id(dialect: Dialect) -> String {
    let prefix = match dialect {
        Dialect::Chat => "chatcmpl-",
        Dialect::Messages => "msg_",
        Dialect::Responses => "resp_",
        Dialect::Google => "",
    };
    format!("{prefix}{}", random_id())
}

/// 96 random bits in hex, to tell replies apart. Zero when the system has no randomness,
/// which no reply depends on.
fn random_id() -> String {
    let mut bytes = [0_u8; 12];
    if getrandom::fill(&mut bytes).is_err() {
        tracing::warn!("no random bytes for a reply id");
    }
    hex::encode(bytes)
}

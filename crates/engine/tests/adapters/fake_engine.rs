//! An HTTP server on loopback that answers as a test says, bytes and faults included.

use futures_util::StreamExt;
use polar_convo::{Dialect, Message, ReplyEvent, Request, Role, Tool};
use polar_engine::{
    Engine, EngineEnd, EngineError, EngineEvent, EngineOptions, EngineStream, GenerateRequest,
};
use serde_json::Value;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

/// A request as the server got it.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) path: String,
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: Value,
}

impl Asked {
    pub(crate) fn streams(&self) -> bool {
        self.body["stream"] == true
    }
}

/// What the server does with it.
pub(crate) enum Answer {
    Json(u16, String),
    /// The same once it may.
    When(watch::Receiver<bool>, Box<Answer>),
    WithHeader(u16, (&'static str, &'static str), String),
    /// These bytes as an event stream, then its end.
    Stream(String),
    /// These bytes as an event stream, then the connection is cut.
    Cut(String),
    /// These bytes as an event stream, then silence until the client leaves.
    Hang(String),
    /// Not even a status until the client leaves.
    Silence,
}

impl Answer {
    pub(crate) fn json(body: impl ToString) -> Self {
        Self::Json(200, body.to_string())
    }

    pub(crate) fn missing() -> Self {
        Self::Json(404, r#"{"detail":"Not Found"}"#.to_owned())
    }
}

type Handler = Arc<dyn Fn(&Asked) -> Answer + Send + Sync>;

pub(crate) struct FakeEngine {
    pub(crate) url: String,
    asked: Arc<Mutex<Vec<Asked>>>,
    connections: Arc<AtomicUsize>,
    /// Gets a path each time a client leaves a hanging reply.
    left: mpsc::UnboundedReceiver<String>,
}

impl FakeEngine {
    pub(crate) async fn start(handler: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let connections = Arc::new(AtomicUsize::new(0));
        let accepted = Arc::clone(&connections);
        let (sender, left) = mpsc::unbounded_channel();
        let (handler, log): (Handler, _) = (Arc::new(handler), Arc::clone(&asked));
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                accepted.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(serve(socket, Arc::clone(&handler), Arc::clone(&log), sender.clone()));
            }
        });
        Self { url, asked, connections, left }
    }

    /// Connections clients have made so far.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// Generation requests so far.
    pub(crate) fn chats(&self) -> Vec<Asked> {
        self.asked_at("/v1/chat/completions")
    }

    /// Requests to a path so far.
    pub(crate) fn asked_at(&self, path: &str) -> Vec<Asked> {
        let asked = self.asked.lock().unwrap();
        asked.iter().filter(|asked| asked.path == path).cloned().collect()
    }

    pub(crate) fn last_at(&self, path: &str) -> Asked {
        self.asked_at(path).pop().unwrap()
    }

    pub(crate) fn last_chat(&self) -> Asked {
        self.chats().pop().unwrap()
    }

    /// Waits until a client has left a hanging reply.
    pub(crate) async fn client_left(&mut self) -> String {
        let waiting = self.left.recv();
        tokio::time::timeout(Duration::from_secs(10), waiting).await.unwrap().unwrap()
    }
}

async fn serve(
    socket: TcpStream,
    handler: Handler,
    log: Arc<Mutex<Vec<Asked>>>,
    left: mpsc::UnboundedSender<String>,
) -> Option<()> {
    let mut socket = BufReader::new(socket);
    loop {
        let asked = read_request(&mut socket).await?;
        log.lock().unwrap().push(asked.clone());
        let answer = match handler(&asked) {
            Answer::When(mut may, answer) => {
                may.wait_for(|may| *may).await.ok()?;
                *answer
            }
            answer => answer,
        };
        match answer {
            Answer::When(..) => return None,
            Answer::Json(status, body) => write_body(&mut socket, status, "", &body).await?,
            Answer::WithHeader(status, (name, value), body) => {
                write_body(&mut socket, status, &format!("{name}: {value}\r\n"), &body).await?;
            }
            Answer::Stream(body) => {
                write_stream(&mut socket, &body).await?;
                socket.write_all(b"0\r\n\r\n").await.ok()?;
            }
            Answer::Cut(body) => {
                write_stream(&mut socket, &body).await?;
                return None;
            }
            Answer::Hang(body) => {
                write_stream(&mut socket, &body).await?;
                socket.read_u8().await.err()?;
                left.send(asked.path).ok()?;
                return None;
            }
            Answer::Silence => {
                socket.read_u8().await.err()?;
                left.send(asked.path).ok()?;
                return None;
            }
        }
    }
}

async fn read_request(socket: &mut BufReader<TcpStream>) -> Option<Asked> {
    let mut line = String::new();
    socket.read_line(&mut line).await.ok()?;
    let path = line.split(' ').nth(1)?.to_owned();
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        socket.read_line(&mut line).await.ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    socket.read_exact(&mut body).await.ok()?;
    let body = serde_json::from_slice(&body).unwrap_or_default();
    Some(Asked { path, headers, body })
}

async fn write_body(
    socket: &mut BufReader<TcpStream>,
    status: u16,
    headers: &str,
    body: &str,
) -> Option<()> {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n{headers}\r\n"
    );
    socket.write_all((head + body).as_bytes()).await.ok()
}

async fn write_stream(socket: &mut BufReader<TcpStream>, body: &str) -> Option<()> {
    let head =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    socket.write_all(head.as_bytes()).await.ok()?;
    // Cut small and anywhere, so that nothing can rely on how the bytes are packed.
    for piece in body.as_bytes().chunks(97) {
        let size = format!("{:x}\r\n", piece.len());
        socket.write_all(size.as_bytes()).await.ok()?;
        socket.write_all(piece).await.ok()?;
        socket.write_all(b"\r\n").await.ok()?;
    }
    socket.flush().await.ok()
}

/// A recorded reply.
pub(crate) fn fixture(name: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");
    std::fs::read_to_string(format!("{folder}/{name}")).unwrap()
}

/// A server that plays one engine's recorded replies: with tools, with a stop string, or
/// plain, whole or streamed. `pages` answers everything that is not a generation.
pub(crate) async fn recorded(
    engine: &'static str,
    pages: impl Fn(&Asked) -> Answer + Send + Sync + 'static,
) -> FakeEngine {
    FakeEngine::start(move |asked| match asked.path.as_str() {
        "/v1/chat/completions" => reply_of(engine, asked),
        _ => pages(asked),
    })
    .await
}

/// The recorded reply to a call.
pub(crate) fn reply_of(engine: &str, asked: &Asked) -> Answer {
    if asked.body["logit_bias"].get("-1").is_some() {
        return Answer::Json(400, fixture(&format!("{engine}/no_such_id.json")));
    }
    let kind = match (asked.body.get("tools"), asked.body.get("stop")) {
        (Some(_), _) => "tool",
        (_, Some(_)) => "stop",
        _ => "text",
    };
    match asked.streams() {
        true => Answer::Stream(fixture(&format!("{engine}/{kind}.sse"))),
        false => Answer::json(fixture(&format!("{engine}/{kind}.json"))),
    }
}

pub(crate) async fn connect(server: &FakeEngine) -> Arc<dyn Engine> {
    polar_engine::connect(&server.url, EngineOptions::default()).await.unwrap()
}

/// The whole of a generation.
#[derive(Debug, Default)]
pub(crate) struct Generation {
    pub(crate) prompt_ids: Option<Vec<u32>>,
    pub(crate) ids: Vec<u32>,
    pub(crate) logprobs: Vec<Option<f32>>,
    pub(crate) events: Vec<ReplyEvent>,
    pub(crate) chunks: usize,
    pub(crate) end: Option<EngineEnd>,
}

impl Generation {
    pub(crate) fn end(&self) -> &EngineEnd {
        self.end.as_ref().unwrap()
    }

    pub(crate) fn text(&self) -> String {
        let text = self.events.iter().filter_map(|event| match event {
            ReplyEvent::Text(text) => Some(text.as_str()),
            _ => None,
        });
        text.collect()
    }

    /// Name and arguments of each tool call.
    pub(crate) fn calls(&self) -> Vec<(String, String)> {
        let mut calls: Vec<(String, String)> = Vec::new();
        for event in &self.events {
            match event {
                ReplyEvent::ToolCall { name, .. } => calls.push((name.clone(), String::new())),
                ReplyEvent::ToolArguments { fragment, .. } => {
                    calls.last_mut().unwrap().1.push_str(fragment);
                }
                _ => {}
            }
        }
        calls
    }
}

pub(crate) async fn collect(mut stream: EngineStream) -> Result<Generation, EngineError> {
    let mut all = Generation::default();
    while let Some(event) = stream.next().await {
        assert!(all.end.is_none(), "an event behind the end");
        match event? {
            EngineEvent::PromptIds(ids) => {
                assert!(all.prompt_ids.replace(ids).is_none(), "prompt ids given twice");
            }
            EngineEvent::Chunk { events, ids, logprobs } => {
                assert_eq!(ids.len(), logprobs.len());
                all.chunks += 1;
                all.events.extend(events);
                all.ids.extend(ids);
                all.logprobs.extend(logprobs);
            }
            EngineEvent::End(end) => all.end = Some(end),
        }
    }
    Ok(all)
}

pub(crate) async fn generate(
    engine: &Arc<dyn Engine>,
    request: Request,
) -> Result<Generation, EngineError> {
    let asked = GenerateRequest { request, request_id: "call-1".to_owned() };
    collect(engine.generate(asked).await?).await
}

pub(crate) fn request(stream: bool) -> Request {
    let mut request = Request::new(Dialect::Messages, "claude-sonnet");
    request.messages = vec![Message::text(Role::User, "How is the weather in Oslo?")];
    request.stream = stream;
    request
}

pub(crate) fn with_tool(mut request: Request) -> Request {
    request.tools = vec![Tool {
        name: "get_weather".to_owned(),
        description: Some("Tells the weather in a city.".to_owned()),
        parameters: serde_json::json!({"type": "object"}),
        rest: serde_json::Map::new(),
    }];
    request
}

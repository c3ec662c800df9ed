//! Sandboxes kept ready for images, each as a session has asked for it before.
//!
//! What a sandbox is made of is known only from the sessions that want it. A recipe that was
//! asked for twice is likely to be asked for again: the pool then keeps as many ready as the
//! image has places, and makes another for each that it gives away. It gives away nothing that
//! is not exactly what the session would have made itself.
//!
//! One task makes them, one at a time, so that a node that fills its pool still has its
//! machine for sessions. It owns what it makes until that is given away, and removes the rest
//! when the pool is closed.

use crate::attempt::RunnerConfig;
use crate::control::Control;
use crate::failure::Stop;
use crate::images::Images;
use crate::maker::{Deadline, Leftovers, Made, Maker, Recipe};
use crate::removal::{Remains, destroy};
use crate::room::{Room, StandBy};
use polar_sandbox::{Exec, ExecEnd};
use polar_types::{Footprint, RuntimeKind, RuntimeSpec};
use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// How many recipes of an image are remembered as asked for once.
const REMEMBERED: usize = 64;
/// How long a sandbox that stood by may take to say that it is there.
const ANSWER: Duration = Duration::from_secs(10);

/// What sandboxes of one kind are made of; without an image of the machine itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeImage {
    /// Who makes them.
    pub runtime: RuntimeKind,
    /// As tasks name it.
    pub image: Option<String>,
}

/// An image of which sandboxes are kept ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WarmImage {
    /// Which.
    pub of: RuntimeImage,
    /// How many.
    pub places: u32,
}

/// The sandboxes that a node keeps ready. Cheap to clone.
#[derive(Clone)]
pub(crate) struct WarmPool {
    /// Nothing where no image has places.
    inner: Option<Arc<Inner>>,
}

struct Inner {
    config: Arc<RunnerConfig>,
    images: Images,
    room: Room,
    shelves: Mutex<Vec<Shelf>>,
    /// Something was asked for or taken.
    wake: Notify,
    closing: CancellationToken,
    filling: Mutex<Option<JoinHandle<()>>>,
}

/// The sandboxes of one image.
struct Shelf {
    of: WarmImage,
    seen: VecDeque<u64>,
    wanted: Option<Wanted>,
    stock: VecDeque<Stocked>,
}

/// One that stands by, and what it was made by.
struct Stocked {
    recipe: Recipe,
    made: Made,
    /// Had as long as it stands by: who takes it has room of his own.
    room: StandBy,
}

/// What a pool is to do next.
#[derive(Default)]
struct Lacking {
    /// To be removed first.
    goes: Option<Stocked>,
    /// To be made, for which shelf and in which room.
    next: Option<(usize, Wanted, StandBy)>,
    /// More would be made if there were room.
    lacks_room: bool,
}

/// What is kept ready.
#[derive(Clone)]
struct Wanted {
    runtime: Arc<RuntimeSpec>,
    recipe: Recipe,
    /// The budget of making one.
    seconds: f64,
}

impl WarmPool {
    pub(crate) fn new(config: Arc<RunnerConfig>, images: Images, room: Room) -> Self {
        let shelf = |of: &WarmImage| Shelf {
            of: of.clone(),
            seen: VecDeque::new(),
            wanted: None,
            stock: VecDeque::new(),
        };
        let with_places = config.warm.iter().filter(|image| image.places > 0);
        let shelves: Vec<_> = with_places.map(shelf).collect();
        if shelves.is_empty() {
            return Self { inner: None };
        }
        let inner = Arc::new(Inner {
            config,
            images,
            room,
            shelves: Mutex::new(shelves),
            wake: Notify::new(),
            closing: CancellationToken::new(),
            filling: Mutex::default(),
        });
        let filling = tokio::spawn(fill(inner.clone()));
        *lock(&inner.filling) = Some(filling);
        Self { inner: Some(inner) }
    }

    /// A sandbox that was made by the same recipe and still answers, if there is one.
    pub(crate) async fn take(
        &self,
        maker: &Maker,
        recipe: &Recipe,
        deadline: Deadline,
    ) -> Result<Option<Made>, Stop> {
        let Some(inner) = &self.inner else { return Ok(None) };
        let since = Instant::now();
        while let Some(mut made) = inner.pick(&maker.runtime, recipe, deadline.seconds()) {
            let answer = answers(maker, &made, deadline).await;
            if let Ok(Answer::There) = answer {
                made.start.warm = true;
                made.start.waited_seconds = since.elapsed().as_secs_f64();
                return Ok(Some(made));
            }
            // Removed behind the session's back: its daemon may hang.
            maker.leftovers.keep(made.sandbox);
            if let Answer::Late = answer? {
                // So may the others, and each would cost the session as much.
                break;
            }
        }
        Ok(None)
    }

    /// Removes what stands by in room that sessions have by now, the oldest of each image first.
    pub(crate) async fn make_way(&self) {
        if let Some(inner) = &self.inner {
            inner.make_way().await;
        }
    }

    /// How many stand by.
    pub(crate) fn stock(&self) -> usize {
        let Some(inner) = &self.inner else { return 0 };
        lock(&inner.shelves).iter().map(|shelf| shelf.stock.len()).sum()
    }

    /// Removes all that stand by; none is made any more.
    pub(crate) async fn close(&self) {
        let Some(inner) = &self.inner else { return };
        inner.closing.cancel();
        let filling = lock(&inner.filling).take();
        if let Some(filling) = filling
            && let Err(error) = filling.await
        {
            tracing::error!(%error, "warm sandboxes are left to the next start");
        }
    }
}

/// What became of a sandbox that stands by: its container may be gone, or its daemon.
enum Answer {
    There,
    Lost,
    /// It gave none in time.
    Late,
}

async fn answers(maker: &Maker, made: &Made, deadline: Deadline) -> Result<Answer, Stop> {
    let answer = tokio::time::timeout(ANSWER, look_at(maker, made));
    match maker.within(deadline, "looking at a warm sandbox", answer).await? {
        Ok(Ok(true)) => Ok(Answer::There),
        Ok(Ok(false)) => Ok(Answer::Lost),
        Ok(Err(stop)) => Err(stop),
        Err(_) => {
            tracing::warn!(sandbox = made.sandbox.name(), "a warm sandbox does not answer");
            Ok(Answer::Late)
        }
    }
}

async fn look_at(maker: &Maker, made: &Made) -> Result<bool, Stop> {
    let exec = Exec {
        argv: ["sh", "-c", ":"].map(str::to_owned).to_vec(),
        workdir: None,
        env: BTreeMap::new(),
        stdin: None,
        timeout: ANSWER,
        stdout: maker.log("warm.out"),
        stderr: maker.log("warm.err"),
        output_limit: 1 << 16,
    };
    match maker.exec(made.sandbox.as_ref(), "looking at a warm sandbox", exec).await {
        Ok(end) => Ok(end == ExecEnd::Exited(0)),
        Err(Stop::Ended(polar_types::Outcome::Failed { message, .. })) => {
            tracing::warn!(sandbox = made.sandbox.name(), message, "a warm sandbox was lost");
            Ok(false)
        }
        Err(stop) => Err(stop),
    }
}

impl Inner {
    /// Notes what is asked for, and takes one of it.
    fn pick(&self, runtime: &Arc<RuntimeSpec>, recipe: &Recipe, seconds: f64) -> Option<Made> {
        let mut shelves = lock(&self.shelves);
        let shelf = shelves.iter_mut().find(|shelf| {
            shelf.of.of.runtime == runtime.kind && shelf.of.of.image == recipe.spec.image
        })?;
        shelf.note(runtime, recipe, seconds);
        let place = shelf.stock.iter().position(|stocked| stocked.recipe.is_same(recipe));
        let stocked = place.and_then(|place| shelf.stock.remove(place));
        self.wake.notify_one();
        stocked.map(|stocked| stocked.made)
    }

    async fn make_way(&self) {
        while self.room.is_over() {
            let oldest = lock(&self.shelves).iter_mut().find_map(|shelf| {
                let oldest = shelf.stock.iter().position(|stocked| !stocked.room.is_nothing())?;
                shelf.stock.remove(oldest)
            });
            let Some(stocked) = oldest else { return };
            destroy(stocked.made.sandbox.as_ref()).await;
        }
    }

    /// Which shelf lacks what, if there is room for it.
    fn lacking(&self) -> Lacking {
        let mut lacking = Lacking::default();
        let mut shelves = lock(&self.shelves);
        for (index, shelf) in shelves.iter_mut().enumerate() {
            let Some(wanted) = shelf.wanted.clone() else { continue };
            let is_other = |stocked: &Stocked| !stocked.recipe.is_same(&wanted.recipe);
            let others = shelf.stock.iter().filter(|made| is_other(made)).count();
            let places = shelf.of.places as usize;
            if shelf.stock.len() - others >= places {
                continue;
            }
            let full = shelf.stock.len() >= places;
            if let Some(oldest) = shelf.stock.iter().position(is_other).filter(|_| full) {
                lacking.goes = shelf.stock.remove(oldest);
                return lacking;
            }
            match self.room.keep_warm(Footprint::of(&wanted.runtime)) {
                Some(room) => {
                    lacking.next = Some((index, wanted, room));
                    return lacking;
                }
                None => lacking.lacks_room = true,
            }
        }
        lacking
    }

    /// Puts what was made on its shelf.
    fn keep(&self, shelf: usize, recipe: Recipe, made: Result<Made, Stop>, room: StandBy) {
        let mut shelves = lock(&self.shelves);
        let Some(shelf) = shelves.get_mut(shelf) else { return };
        match made {
            Ok(made) => {
                // The image's name may have come to mean another since it was asked for, which
                // all who ask from now on get.
                let of = Recipe { image_id: made.image_id.clone(), ..recipe.clone() };
                if let Some(wanted) = shelf.wanted.as_mut().filter(|w| w.recipe.is_same(&recipe)) {
                    wanted.recipe.image_id.clone_from(&made.image_id);
                }
                shelf.stock.push_back(Stocked { recipe: of, made, room });
            }
            Err(Stop::Abandoned) => {}
            Err(stop) => {
                tracing::warn!(?stop, image = ?shelf.of.of.image, "no warm sandbox");
                // Sessions have to ask for it anew.
                shelf.wanted = None;
                shelf.seen.clear();
            }
        }
    }

    fn empty(&self) -> Vec<Made> {
        let mut shelves = lock(&self.shelves);
        shelves
            .iter_mut()
            .flat_map(|shelf| shelf.stock.drain(..))
            .map(|stocked| stocked.made)
            .collect()
    }

    fn maker(&self, wanted: &Wanted, leftovers: &Leftovers) -> Maker {
        Maker {
            config: self.config.clone(),
            images: self.images.clone(),
            runtime: wanted.runtime.clone(),
            logs: self.config.warm_folder.join("logs"),
            // No session's order ends it.
            control: watch::channel(Control::Go).1,
            given_up: self.closing.clone(),
            leftovers: leftovers.clone(),
        }
    }
}

impl Shelf {
    /// A recipe that was asked for before is kept ready from now on.
    fn note(&mut self, runtime: &Arc<RuntimeSpec>, recipe: &Recipe, seconds: f64) {
        if self.wanted.as_ref().is_some_and(|wanted| wanted.recipe.is_same(recipe)) {
            return;
        }
        let print = fingerprint(recipe);
        if self.seen.contains(&print) {
            let (runtime, recipe) = (runtime.clone(), recipe.clone());
            self.wanted = Some(Wanted { runtime, recipe, seconds });
            return;
        }
        if self.seen.len() == REMEMBERED {
            self.seen.pop_front();
        }
        self.seen.push_back(print);
    }
}

/// Makes what lacks until the pool is closed, then removes all.
async fn fill(inner: Arc<Inner>) {
    let leftovers = Leftovers::default();
    let folder = &inner.config.warm_folder;
    // Names of an earlier process's may still be in use.
    let (of_process, mut number) = (start_time(), 0_u64);
    let mut changes = inner.room.changes();
    while !inner.closing.is_cancelled() {
        // One that was being made may be in the way by now.
        inner.make_way().await;
        let lacking = inner.lacking();
        if let Some(Stocked { made, .. }) = lacking.goes {
            destroy(made.sandbox.as_ref()).await;
            continue;
        }
        let Some((shelf, wanted, room)) = lacking.next else {
            tokio::select! {
                () = inner.closing.cancelled() => break,
                () = inner.wake.notified() => continue,
                () = changes.changed(), if lacking.lacks_room => continue,
            }
        };
        number += 1;
        let mut recipe = wanted.recipe.clone();
        recipe.spec.name = format!("warm-{of_process}-{number}");
        recipe.spec.host_dir = folder.join(&recipe.spec.name);
        let maker = inner.maker(&wanted, &leftovers);
        let deadline = Deadline::of_preparing(wanted.seconds);
        let made = match std::fs::create_dir_all(&maker.logs) {
            Ok(()) => maker.make(recipe, deadline, |_| ()).await,
            Err(error) => Err(crate::maker::sandbox_failure(error.to_string())),
        };
        inner.keep(shelf, wanted.recipe, made, room);
        leftovers.clear().await;
    }
    let sandboxes = inner.empty().into_iter().map(|made| made.sandbox).collect();
    Remains { sandboxes, warming: None, leftovers }.remove().await;
}

fn start_time() -> String {
    format!("{:x}", jiff::Timestamp::now().as_microsecond())
}

fn fingerprint(recipe: &Recipe) -> u64 {
    let mut hasher = DefaultHasher::new();
    format!("{:?}", recipe.anonymous()).hash(&mut hasher);
    hasher.finish()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

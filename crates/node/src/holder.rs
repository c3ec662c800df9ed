//! One leased session, from its folder to what is left of it on this machine.
//!
//! A holder runs the session and delivers its report; the sandbox goes away meanwhile or
//! later. What happens to the lease besides is the dispatcher's business: it learns
//! from [`Left`] how things stand.

use crate::brake::{self, Brake, Sign};
use crate::delivery::{Courier, Delivery};
use crate::metrics::Ends;
use polar_session::{
    AttemptFolder, Control, Ended, Progress, Removal, Reservation, SessionRunner, salvage,
};
use polar_types::{Lease, NodeId, SessionReport, Stage, TaskId, TroubleKind};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// What became of a held session.
pub(crate) enum Left {
    /// Its report is with the server, or kept on disk where the server will not have it
    /// now. The lease is of no more use.
    Settled {
        /// What is still to be done.
        clearing: Clearing,
    },
    /// It failed before its agent ran, on a machine that is known to be broken. Nothing of it is
    /// left, and it goes back for this reason.
    Failed(String),
    /// It was given up, and nothing of it runs any more.
    GivenUp(Box<GivenUp>),
    /// Nothing was done for it, so that it can go back.
    NotStarted,
}

/// The rest of the work for a session that is no longer held. Until it is done, the
/// session takes a place on this machine.
pub(crate) type Clearing = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Takes one leased session from its folder to its delivery.
pub(crate) struct Holder {
    pub(crate) runner: SessionRunner,
    pub(crate) courier: Courier,
    pub(crate) sessions: PathBuf,
    pub(crate) node_id: NodeId,
    pub(crate) brake: Arc<Brake>,
    pub(crate) ends: Arc<Ends>,
}

impl Holder {
    /// In the room that the session has, or waits for, since it came.
    pub(crate) async fn hold(
        self,
        lease: Lease,
        room: Reservation,
        control: watch::Receiver<Control>,
        progress: watch::Sender<Progress>,
    ) -> Left {
        let folder = match AttemptFolder::create(&self.sessions, &lease) {
            Ok(folder) => folder,
            Err(error) => {
                // Without a folder nothing can be recorded or reported.
                let session = &lease.session_id;
                tracing::error!(%session, %error, "no folder for the session; check the disk");
                let message = format!("no folder for a session could be made: {error}");
                self.brake.fail(&lease.task.task_id, TroubleKind::Disk, &message);
                return Left::NotStarted;
            }
        };
        let progress = Arc::new(progress);
        let attempt = {
            let (runner, lease, folder) = (self.runner.clone(), lease.clone(), folder.clone());
            let (progress, courier, node_id) =
                (progress.clone(), self.courier.clone(), self.node_id.clone());
            async move {
                if let Some(order) = &lease.regrade {
                    progress.send_replace(Progress::in_stage(Stage::Prepare, "its stored work"));
                    let mut orders = control.clone();
                    let fetched = tokio::select! {
                        fetched = courier.fetch(order, &folder) => fetched,
                        // Who runs it sees to that.
                        _ = orders.wait_for(|order| *order != Control::Go) => Ok(()),
                    };
                    if let Err(error) = fetched {
                        let reason = format!("what is stored was not got: {error}");
                        let report = salvage(&folder, lease, node_id, &reason).await;
                        return (Ended::Reported(Box::new(report)), Removal::of_nothing());
                    }
                }
                runner.run(lease, room, folder, control, progress).await
            }
        };
        // A task of its own, so that a panic in it is an error here.
        let mut is_whole = true;
        let (ended, removal) = match tokio::spawn(attempt).await {
            Ok(ended) => ended,
            Err(error) => {
                is_whole = false;
                tracing::error!(session = %lease.session_id, %error, "the session broke off");
                let reason = format!("the session broke off inside Polar: {error}");
                let report = salvage(&folder, lease.clone(), self.node_id.clone(), &reason).await;
                (Ended::Reported(Box::new(report)), Removal::of_nothing())
            }
        };
        let report = match ended {
            Ended::Reported(report) => report,
            Ended::Abandoned => {
                removal.over().await;
                let (courier, node_id) = (self.courier, self.node_id);
                let session = GivenUp { courier, folder, lease, node_id };
                return Left::GivenUp(Box::new(session));
            }
        };
        self.ends.note(&report);
        let goes_back = self.judge(&lease.task.task_id, &report);
        if let Some(reason) = goes_back.filter(|_| is_whole && folder.has_no_calls()) {
            removal.over().await;
            self.courier.put_away(&folder, Delivery::Needless);
            return Left::Failed(reason);
        }
        progress.send_replace(Progress::in_stage(Stage::Deliver, "the server to take its result"));
        let delivery = self.courier.deliver(&folder, &report).await;
        let courier = self.courier;
        let clearing = Box::pin(async move {
            // The sandbox has its files in the folder.
            removal.over().await;
            courier.put_away(&folder, delivery);
        });
        Left::Settled { clearing }
    }

    /// Tells the brake how the session went, and why it may go back, should it.
    fn judge(&self, task: &TaskId, report: &SessionReport) -> Option<String> {
        match brake::sign(&report.outcome) {
            Sign::Suspicious(kind, message) => {
                self.brake.fail(task, kind, message);
                self.brake.gives_back(report).then(|| message.to_owned())
            }
            Sign::Well => {
                self.brake.release();
                None
            }
            Sign::Nothing => None,
        }
    }
}

/// A session that was given up, with what its folder holds.
pub(crate) struct GivenUp {
    courier: Courier,
    folder: AttemptFolder,
    lease: Lease,
    node_id: NodeId,
}

impl GivenUp {
    /// Reports the calls recorded so far, as those of an attempt whose lease is lost: the
    /// server keeps them with the attempt and lets nobody train on them. The lease must
    /// be lost by then, or the server would take this for the attempt's result.
    ///
    /// With a `patience`, this is how long it is tried, also while the node goes down.
    pub(crate) async fn keep_calls(self, reason: &str, patience: Option<Duration>) {
        let Self { courier, folder, lease, node_id } = self;
        let report = salvage(&folder, lease, node_id, reason).await;
        let delivery = match (report.calls, patience) {
            (0, _) => Delivery::Needless,
            (_, None) => courier.deliver(&folder, &report).await,
            (_, Some(patience)) => courier.deliver_within(&folder, &report, patience).await,
        };
        courier.put_away(&folder, delivery);
    }
}

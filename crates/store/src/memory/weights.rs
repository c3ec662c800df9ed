//! Weight updates in the model.

use super::state::{State, Weights};
use crate::rules::{plus, rfc3339};
use crate::weights::{PushedWeights, Repeat, StoredUpdate, WeightNode, are_all_new, repeat};
use crate::{Limits, StoreError};
use polar_types::{EngineWeights, WeightReport, WeightTarget, WeightUpdate, WeightUpdateRequest};

impl State {
    pub(super) fn push_weights(
        &mut self,
        request: WeightUpdateRequest,
        limits: &Limits,
        now: i64,
    ) -> Result<PushedWeights, StoreError> {
        let version = request.version.clone();
        match self.weight_update(&version, limits, now) {
            Ok(known) => match repeat(&known, &request)? {
                Repeat::Same => return Ok(PushedWeights { update: known, created: false }),
                Repeat::Again => self.weights.retain(|one| one.update.request.version != version),
            },
            Err(StoreError::NotFound { .. }) => {}
            Err(other) => return Err(other),
        }
        self.last_weights += 1;
        let ordinal = self.last_weights;
        let update = StoredUpdate { request, ordinal, requested_at: now, done_at: None };
        self.weights.push(Weights { update, engines: Default::default() });
        self.stored.weights = true;
        Ok(PushedWeights { update: self.weight_update(&version, limits, now)?, created: true })
    }

    pub(super) fn note_weights(&mut self, report: &WeightReport, limits: &Limits, now: i64) {
        let nodes = self.weight_nodes(limits, now);
        let newest = self.last_weights;
        let mut all = self.weights.iter_mut();
        let known = report.known.and_then(|known| all.find(|one| one.update.ordinal == known));
        let Some(weights) = known else { return };
        for engine in &report.engines {
            let told = EngineWeights { node_id: None, at: None, ..engine.clone() };
            let key = (report.node_id.clone(), engine.engine.clone());
            let before = weights.engines.get(&key).cloned();
            if before.as_ref().is_some_and(|(before, _)| *before == told) {
                continue;
            }
            let since = before.filter(|(before, _)| before.state == told.state).map(|(_, at)| at);
            weights.engines.insert(key, (told, since.unwrap_or(now)));
            self.stored.weights = true;
        }
        let before = weights.engines.len();
        weights.engines.retain(|(node, url), _| {
            *node != report.node_id || report.engines.iter().any(|engine| engine.engine == *url)
        });
        self.stored.weights |= weights.engines.len() < before;
        if weights.update.ordinal == newest && are_all_new(weights.told(), &nodes) {
            weights.update.done_at.get_or_insert(now);
        }
    }

    pub(super) fn weight_target(&self) -> Option<WeightTarget> {
        let update = &self.weights.last()?.update;
        Some(WeightTarget { ordinal: update.ordinal, update: update.request.clone() })
    }

    pub(super) fn weight_updates(
        &self,
        limit: u32,
        limits: &Limits,
        now: i64,
    ) -> Vec<WeightUpdate> {
        let nodes = self.weight_nodes(limits, now);
        let newest = self.weights.iter().rev().take(limit as usize);
        newest.map(|weights| self.shown_weights(weights, &nodes)).collect()
    }

    pub(super) fn weight_update(
        &self,
        version: &str,
        limits: &Limits,
        now: i64,
    ) -> Result<WeightUpdate, StoreError> {
        let found = self.weights.iter().find(|weights| weights.update.request.version == version);
        let found = found.ok_or_else(|| StoreError::not_found("weight version", version))?;
        Ok(self.shown_weights(found, &self.weight_nodes(limits, now)))
    }

    fn shown_weights(&self, weights: &Weights, nodes: &[WeightNode]) -> WeightUpdate {
        let is_newest = weights.update.ordinal == self.last_weights;
        weights.update.clone().shown(weights.told(), nodes, is_newest)
    }

    fn weight_nodes(&self, limits: &Limits, now: i64) -> Vec<WeightNode> {
        let nodes = self.nodes.values().map(|node| WeightNode {
            node_id: node.info.node_id.clone(),
            engine: node.info.engine.clone(),
            alive: plus(node.last_seen, limits.lease_ttl) > now,
        });
        nodes.collect()
    }
}

impl Weights {
    fn told(&self) -> Vec<EngineWeights> {
        let told = self.engines.iter().map(|((node, _), (told, since))| EngineWeights {
            node_id: Some(node.clone()),
            at: Some(rfc3339(*since)),
            ..told.clone()
        });
        told.collect()
    }
}

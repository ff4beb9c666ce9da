//! One pass: binaries, kubeconfig, entry. Each step observes first and changes only what differs from the desired state.

use std::{
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    os::unix::fs::MetadataExt as _,
    path::Path,
    time::Instant,
};

use model::{EventLevel, EventSubject, Notice};
use tracing::{info, warn};

use crate::{
    Error, InstallStep, Installer, KubeconfigSettings,
    conf::{self, ChangeCause, ConfChange, ConfPlan},
    conflict::ConflictVerdict,
    entry::TemplateUpdate,
    known_writers,
    kubeconfig::MAX_KUBECONFIG,
    leftovers,
    run::{InstallProblem, PassResult},
};

impl Installer {
    /// Observes everything and repairs it.
    pub(crate) fn run_pass(&mut self) -> PassResult {
        let mut result = PassResult::default();
        let plugin = self.binaries_step(&mut result);
        let credential = self.kubeconfig_step(&mut result);
        // An entry without a working plugin, or without the credential that it refers to, would keep pods from starting.
        if plugin
            && credential
            && let Err(error) = self.write_entry(&mut result)
        {
            result.problems.push(InstallProblem::Failed(InstallStep::Conf, error));
        }
        if result.problems.is_empty() && (result.changed || !self.complete) {
            self.remove_former_kubeconfigs();
        }
        result
    }

    /// Removes credentials under the names of other settings, which nothing reads any more.
    fn remove_former_kubeconfigs(&self) {
        for path in &self.settings.former_kubeconfigs {
            match hostfs::remove(path) {
                Ok(true) => info!(target: "install", path = %path.display(), "removed"),
                Ok(false) => {}
                Err(error) => warn!(target: "install", %error, "cannot remove an old credential"),
            }
        }
    }

    /// Returns whether a working plugin exists. An old one, or a conflicting writer's, is better than none.
    fn binaries_step(&mut self, result: &mut PassResult) -> bool {
        if self.complete && self.binaries.are_touched() && !self.may_repair(InstallStep::Binaries, result) {
            return self.binaries.has_working_plugin(&self.settings);
        }
        let installed = match self.binaries.install(&self.settings) {
            Ok(installed) => installed,
            Err(error) => {
                result.problems.push(InstallProblem::Failed(InstallStep::Binaries, error));
                return self.binaries.has_working_plugin(&self.settings);
            }
        };
        if installed.left_out != self.left_out {
            installed
                .left_out
                .iter()
                .for_each(|why| info!(target: "install", reason = why, "directory skipped"));
            self.left_out = installed.left_out;
        }
        for path in &installed.replaced {
            self.record_repair(InstallStep::Binaries, "binary", &format!("installed {}", path.display()));
        }
        result.changed |= !installed.replaced.is_empty();
        result.problems.extend(installed.unsettled.iter().map(|path| describe_overwrite(path)));
        result.witnesses.extend(installed.good);
        true
    }

    /// Returns whether a credential exists, or none is desired. An old one is better than none: it may still be valid.
    fn kubeconfig_step(&mut self, result: &mut PassResult) -> bool {
        let path = self.settings.kubeconfig_path.clone();
        let done = match self.settings.kubeconfig.clone() {
            Some(desired) => self.write_kubeconfig(&path, &desired, result),
            None => hostfs::remove(&path).map(drop).map_err(Error::from),
        };
        match done {
            Ok(()) if self.settings.kubeconfig.is_none() => return true,
            Ok(()) => {}
            Err(error) => result.problems.push(InstallProblem::Failed(InstallStep::Kubeconfig, error)),
        }
        // False for a directory, and while another program keeps removing the file.
        hostfs::read(&path, MAX_KUBECONFIG).is_ok()
    }

    fn write_kubeconfig(
        &mut self,
        path: &Path,
        desired: &KubeconfigSettings,
        result: &mut PassResult,
    ) -> Result<(), Error> {
        let (text, token) = desired.render()?;
        let now = (hash(&text), hash(&token));
        let before = self.credential;
        let mut fingerprint = hostfs::fingerprint(path)?; // taken before the content is read, so that later changes are detected
        if !is_good(path, &text, desired.mode) {
            let is_drift = before.is_some_and(|(text, _)| text == now.0);
            if is_drift && !self.may_repair(InstallStep::Kubeconfig, result) {
                return Ok(());
            }
            hostfs::write(path, text.as_bytes(), desired.mode)?;
            result.changed = true;
            fingerprint = hostfs::fingerprint(path)?;
            // The content is a secret: only the path is logged.
            if is_drift {
                self.record_repair(
                    InstallStep::Kubeconfig,
                    "kubeconfig",
                    &format!("wrote {}", path.display()),
                );
            } else {
                info!(target: "install", path = %path.display(), "kubeconfig written");
            }
            if before.is_some_and(|(_, token)| token != now.1) {
                self.metrics.rotations.inc();
            }
        }
        self.credential = Some(now);
        if result.changed && !is_good(path, &text, desired.mode) {
            result.problems.push(describe_overwrite(path));
        }
        result.witnesses.extend(fingerprint.map(|fingerprint| (path.to_owned(), fingerprint)));
        Ok(())
    }

    fn write_entry(&mut self, result: &mut PassResult) -> Result<(), Error> {
        let update = self.entries.reload_template(&self.settings)?;
        self.has_new_template |= matches!(update, TemplateUpdate::New);
        let is_new = self.has_new_template;
        if let TemplateUpdate::Refused(error) = update {
            self.report_refusal(&error.to_string());
        }
        let Some(current) = self.entries.current.clone() else { return Err(Error::NoTemplate) };
        self.status.set_excluded_namespaces(current.entry.excluded_namespaces());
        let (holder, changes) = match conf::plan_changes(&self.settings, &current.entry, &current.text)? {
            ConfPlan::Do { holder, changes } => (holder, changes),
            ConfPlan::Wait(why) => {
                result.problems.push(InstallProblem::Waiting(why));
                return Ok(());
            }
        };
        if !self.complete {
            leftovers::remove_temporaries(&self.settings, &holder);
        }
        if !changes.is_empty() {
            if self.complete && !is_new && !self.may_repair(InstallStep::Conf, result) {
                return Ok(());
            }
            self.apply_changes(&changes, is_new)?;
            result.changed = true;
        }
        if is_new {
            self.has_new_template = false;
            self.metrics.count_update(true);
        }
        // Fingerprints older than the observation that finds no difference, so that any later change is detected, however soon.
        let directory = self.settings.conf_dir.clone();
        let fingerprints = (hostfs::fingerprint(&directory)?, hostfs::fingerprint(&holder)?);
        self.report_default_conflict(&holder);
        match conf::plan_changes(&self.settings, &current.entry, &current.text)? {
            ConfPlan::Do { holder: now, changes } if changes.is_empty() && now == holder => {
                result.witnesses.extend(fingerprints.0.map(|fingerprint| (directory, fingerprint)));
                result.witnesses.extend(fingerprints.1.map(|fingerprint| (holder, fingerprint)));
            }
            ConfPlan::Do { .. } => {
                result.problems.push(describe_overwrite(&directory));
            }
            ConfPlan::Wait(why) => result.problems.push(InstallProblem::Waiting(why)),
        }
        Ok(())
    }

    /// Warns once of a named network that is not the runtime's default, which is intended if CRI-O is configured for it.
    fn report_default_conflict(&mut self, holder: &Path) {
        match conf::default_conflict(&self.settings, holder) {
            Some(conflict) if self.last_conflict.replace(&conflict) => {
                warn!(target: "install", reason = conflict, "CNI_CONF_NAME names another network than the runtime's default");
            }
            Some(_) => {}
            None => {
                self.last_conflict.clear();
            }
        }
    }

    fn apply_changes(&mut self, changes: &[(ChangeCause, ConfChange)], is_new: bool) -> Result<(), Error> {
        for (cause, change) in changes {
            conf::apply(change)?;
            if is_new {
                info!(target: "install", cause = cause.code(), change = change.description(), "new CNI network configuration applied");
            } else {
                self.record_repair(InstallStep::Conf, cause.code(), &change.description());
            }
        }
        Ok(())
    }

    /// Reports each distinct text once.
    fn report_refusal(&mut self, why: &str) {
        warn!(target: "install", error = why, "new CNI network configuration refused; keeping the last good one");
        self.metrics.count_update(false);
        let message =
            format!("The new CNI network configuration is invalid; keeping the last good one: {why}");
        make_warnings("CNIConfigRefused", &message).into_iter().for_each(&self.notify);
    }

    /// Counts and logs one of our changes.
    fn record_repair(&mut self, step: InstallStep, cause: &'static str, what: &str) {
        info!(target: "install", cause, change = what, "installation updated");
        if self.complete {
            self.metrics.restores.get_or_create(&[("cause", cause)]).inc();
            self.conflicts.entry(step).or_default().record_repair(Instant::now());
        }
    }

    /// Whether to repair drift now, or to back off because another program keeps undoing the repair.
    fn may_repair(&mut self, step: InstallStep, result: &mut PassResult) -> bool {
        let conflict = self.conflicts.entry(step).or_default();
        let (until, is_first) = match conflict.record_drift(Instant::now()) {
            ConflictVerdict::Repair => return true,
            ConflictVerdict::Conflict(until) => (until, true),
            ConflictVerdict::BackOff(until) => (until, false),
        };
        let (times, file) = (conflict.answer_count(), step.as_str());
        let rival = known_writers::describe_writers(&self.settings.conf_dir);
        let message = format!("another program keeps reverting our {file}: {rival}");
        if is_first {
            self.metrics.count_conflict(file);
            warn!(target: "install", file, times, rival, "another program keeps reverting the installation; backing off");
            make_warnings("CNIConfigConflict", &message).into_iter().for_each(&self.notify);
        }
        result.problems.push(InstallProblem::Fought(message, until));
        false
    }
}

/// Returns a warning about the node, and one about the agent's pod if there is one.
fn make_warnings(reason: &'static str, message: &str) -> [Notice; 2] {
    [EventSubject::Node, EventSubject::Agent { or_node: false }].map(|about| {
        let message = message.to_owned();
        Notice { about, level: EventLevel::Warning, reason, message }
    })
}

pub(crate) fn is_good(path: &Path, text: &str, mode: u32) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.mode() & 0o7777 == mode)
        && hostfs::read(path, MAX_KUBECONFIG).is_ok_and(|found| found == text.as_bytes())
}

fn describe_overwrite(path: &Path) -> InstallProblem {
    InstallProblem::Waiting(format!("{} was changed again right after it was written", path.display()))
}

/// Hashes a text, so that it can be recognised without being kept: it contains a credential.
fn hash(text: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

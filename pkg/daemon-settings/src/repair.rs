//! Repair of broken pods: 13 settings of Istio, and one of ours.

use ::repair::{RepairCriteria, RepairMode, RepairOptions};
use enrolment::EnrolmentPolicy;
use model::ExistingConnections;

use crate::{AgentIdentity, SettingsReader, options};

impl SettingsReader<'_> {
    /// Reads the options; `None`: repair is off.
    pub(super) fn read_repair_options(
        &mut self,
        identity: &AgentIdentity,
        existing: ExistingConnections,
    ) -> Option<RepairOptions> {
        let enabled = self.parse_boolean(&options::REPAIR_ENABLED);
        let mode = self.repair_mode();
        let exit_code = self.exit_code();
        let dry_run = self.parse_boolean(&options::REPAIR_DRY_RUN);
        let mode = mode.filter(|_| enabled)?;
        let criteria = RepairCriteria {
            sidecar_annotation: self.flag_text(&options::REPAIR_SIDECAR_ANNOTATION),
            init_container: self.flag_text(&options::REPAIR_INIT_CONTAINER_NAME),
            termination_message: self.flag_text(&options::REPAIR_INIT_CONTAINER_TERMINATION_MESSAGE),
            exit_code,
        };
        // Istio interprets an empty name as that of pods without a node.
        let node = self.optional_text(&options::REPAIR_NODE_NAME).unwrap_or_else(|| identity.node.clone());
        Some(RepairOptions {
            mode,
            criteria,
            node,
            label_selector: self.flag_text(&options::REPAIR_LABEL_SELECTORS),
            field_selector: self.flag_text(&options::REPAIR_FIELD_SELECTORS),
            dry_run,
            existing,
            policy: EnrolmentPolicy {
                excluded_namespaces: self.excluded_namespaces(),
                agent_namespaces: self.agent_namespaces(identity),
                ..EnrolmentPolicy::default()
            },
        })
    }

    /// Returns the first enabled mode, in Istio's order.
    fn repair_mode(&mut self) -> Option<RepairMode> {
        let in_place = self.parse_boolean(&options::REPAIR_REPAIR_PODS);
        let delete = self.parse_boolean(&options::REPAIR_DELETE_PODS);
        let label = self.parse_boolean(&options::REPAIR_LABEL_PODS);
        match (in_place, delete, label) {
            (true, _, _) => Some(RepairMode::InPlace),
            (_, true, _) => Some(RepairMode::Delete),
            (_, _, true) => Some(RepairMode::Label {
                key: self.flag_text(&options::REPAIR_BROKEN_POD_LABEL_KEY),
                value: self.flag_text(&options::REPAIR_BROKEN_POD_LABEL_VALUE),
            }),
            _ => None,
        }
    }

    /// Parses an exit code; empty counts as 0, as in Istio: any.
    fn exit_code(&mut self) -> i32 {
        self.parse_flag(&options::REPAIR_INIT_CONTAINER_EXIT_CODE, |text| match text {
            "" => Ok(0),
            _ => text.parse().map_err(|_| format!("{text:?} is not an exit status")),
        })
    }
}

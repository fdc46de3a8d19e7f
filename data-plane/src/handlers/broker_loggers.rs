//! BROKER_LOGGER in DescribeConfigs and IncrementalAlterConfigs (KIP-412): the log levels of this broker's process. Only a
//! broker itself knows them; any other one answers 42.

use highwater_wire::{BrokerId, ErrorCode};
use kafka_wire::describe_configs_response::DescribeConfigsResourceResult;
use kafka_wire::incremental_alter_configs_request::AlterableConfig;

use super::context::Context;
use super::named::Fault;
use crate::loggers::{LogLevel, Logger, Loggers, UnknownLevel, UnknownLogger};

/// Kafka's number of the source of a logger's level.
const DYNAMIC_BROKER_LOGGER_CONFIG: i8 = 6;

/// Every logger of this broker as a configuration entry.
///
/// # Errors
/// 42 for another broker.
pub(super) fn describe(context: &Context, name: &str) -> Result<Vec<DescribeConfigsResourceResult>, Fault> {
    this_broker(context.identity.broker, name)?;
    let entry = |logger: Logger| {
        let mut told = DescribeConfigsResourceResult::default();
        told.name = logger.name.into();
        told.value = Some(logger.level.name().into());
        told.config_source = DYNAMIC_BROKER_LOGGER_CONFIG;
        told
    };
    Ok(context.loggers.all().into_iter().map(entry).collect())
}

/// Sets and resets levels, all that are named or none.
///
/// # Errors
/// 42 for another broker and for operations that a level does not know, 40 for what is no logger or no level.
pub(super) fn alter(
    context: &Context,
    name: &str,
    configs: &[AlterableConfig],
    validate_only: bool,
) -> Result<(), Fault> {
    this_broker(context.identity.broker, name)?;
    let changes = configs.iter().map(|config| change(&context.loggers, config)).collect::<Result<Vec<_>, _>>()?;
    if validate_only {
        return Ok(());
    }
    for (logger, level) in changes {
        let done = match level {
            Some(level) => context.loggers.set(logger, level, None).map(drop),
            None => context.loggers.reset(logger),
        };
        done.map_err(unknown)?;
    }
    Ok(())
}

fn this_broker(me: BrokerId, name: &str) -> Result<(), Fault> {
    match name.parse::<i32>() {
        Ok(id) if id == me.0 => Ok(()),
        _ => Err((ErrorCode::InvalidRequest, format!("unexpected broker id, expected {me}, but received {name:?}"))),
    }
}

/// What becomes of one logger; `None`: it goes back to what was configured.
fn change<'a>(loggers: &Loggers, config: &'a AlterableConfig) -> Result<(&'a str, Option<LogLevel>), Fault> {
    let logger = config.name.as_str();
    loggers.named(logger).map_err(unknown)?;
    match config.config_operation {
        0 => {
            let given = config.value.as_ref().map_or("", |value| value.as_str());
            let level = given
                .parse()
                .map_err(|error: UnknownLevel| (ErrorCode::InvalidConfig, format!("logger {logger}: {error}")))?;
            Ok((logger, Some(level)))
        }
        1 => Ok((logger, None)),
        _ => Err((ErrorCode::InvalidRequest, format!("logger {logger}: a level is set or deleted, nothing else"))),
    }
}

fn unknown(unknown: UnknownLogger) -> Fault {
    (ErrorCode::InvalidConfig, unknown.to_string())
}

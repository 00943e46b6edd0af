//! The close of what is no longer served, which writes it to its disk. Who ends the server waits for it.

use std::sync::{Arc, OnceLock};

use kernel::Processor;
use kernel::wait::WaitList;
use machine::Errno;
use policy::unit::ProcessorId;

use crate::processors::Processors;
use crate::tell::tell;

/// What a person is told of.
pub fn export(name: &str) -> String {
    format!("export {name:?}")
}

pub struct Closing {
    name: String,
    result: OnceLock<Result<(), Errno>>,
    changed: WaitList,
}

impl Closing {
    /// Starts to close the export `name`.
    pub fn start<F>(
        processors: &Processors,
        name: &str,
        close: impl FnOnce(Processor) -> F + Send + 'static,
    ) -> Arc<Closing>
    where
        F: Future<Output = Result<(), Errno>> + 'static,
    {
        let closing =
            Arc::new(Closing { name: name.to_owned(), result: OnceLock::new(), changed: WaitList::default() });
        let notified = Arc::clone(&closing);
        drop(processors.start_task(ProcessorId(0), move |cpu| async move {
            // Set once: here.
            let _ = notified.result.set(close(cpu).await);
            notified.changed.wake_all();
        }));
        closing
    }

    /// Is it over? Then a failure is printed.
    pub fn tell_end(&self) -> bool {
        if let Some(Err(error)) = self.result.get() {
            tell(format_args!("{} could not be written to its disk: {error}", export(&self.name)));
        }
        self.result.get().is_some()
    }

    /// Waits for its end. Returns the export if it could not be written.
    pub async fn until_ended(&self) -> Option<(String, Errno)> {
        let result = self.changed.until(|| self.result.get().copied()).await;
        result.err().map(|error| (export(&self.name), error))
    }
}

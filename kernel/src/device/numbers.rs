//! The numbers of devices in the cache's keys.

use parking_lot::Mutex;
use policy::unit::DeviceId;

/// All numbers are in use.
#[derive(Debug, thiserror::Error)]
#[error("too many devices are open (65536)")]
pub struct TooManyDevices;

#[derive(Default)]
pub(crate) struct DeviceNumbers(Mutex<Numbers>);

#[derive(Default)]
struct Numbers {
    next: u16,
    returned: Vec<u16>,
}

impl DeviceNumbers {
    /// A number that no open device has.
    pub(crate) fn take(&self) -> Result<DeviceId, TooManyDevices> {
        let mut numbers = self.0.lock();
        if let Some(number) = numbers.returned.pop() {
            return Ok(DeviceId(number));
        }
        let number = numbers.next;
        numbers.next = number.checked_add(1).ok_or(TooManyDevices)?;
        Ok(DeviceId(number))
    }

    /// The device is closed, and the cache has none of its blocks.
    pub(crate) fn give_back(&self, device: DeviceId) {
        self.0.lock().returned.push(device.0);
    }
}

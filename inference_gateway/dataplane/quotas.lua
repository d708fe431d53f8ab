-- Tells a key that has used up its requests per minute when the next one is admitted.
--
-- HAProxy's rate is the number admitted in the current minute, and of that of the minute before the share that is left
-- of the current one: rate = current + before * left / 60 s. While a key is refused this is at least its limit and less
-- than one more. So the second term is less than limit + 1 - current, and as it falls evenly to 0 until the minute's
-- end, the rate is below the limit after at most left / (limit + 1 - current): at the minute's end after a burst, and
-- after 60 s / limit where as many were admitted in the minute before.
--
-- HAProxy shows the rate alone, so the end of a key's minute and the number admitted before it are kept here.

local MINUTE_MS = 60000

-- The key's minute at a request that is admitted. Like HAProxy's, one follows the other, but after one without a request
-- the next one begins with the request. `admitted` counts since HAProxy began to count.
local function minute_of(last, now_ms, admitted)
  if admitted == 0 or now_ms - last.ends_ms >= MINUTE_MS then
    return { ends_ms = now_ms + MINUTE_MS, before = admitted }
  end
  return now_ms < last.ends_ms and last or { ends_ms = last.ends_ms + MINUTE_MS, before = admitted }
end

-- The longest time, in whole seconds, until a request of a key that is refused now is admitted.
local function wait_s(minute, now_ms, admitted, limit)
  local left_ms = (minute.ends_ms - now_ms - 1) % MINUTE_MS + 1
  return left_ms // (1000 * math.max(1, limit + 1 - admitted + minute.before)) + 1
end

if not core then
  return { minute_of = minute_of, wait_s = wait_s }
end

local minutes = {} -- by key

-- On the clock by which HAProxy counts, which falls behind that of `date` when the machine stalls.
local function now_ms()
  local now = core.now()
  return now.sec * 1000 + now.usec // 1000
end

-- lua.minute: of an admitted request; the second, by `date`, in which the minute ends.
core.register_fetches("minute", function(txn)
  local key, now = txn:get_var("txn.key"), now_ms()
  minutes[key] = minute_of(minutes[key], now, txn.f:sc_get_gpc0(0))
  return txn.f:date() + (minutes[key].ends_ms - now) // 1000
end)

-- lua.wait_s: of a refused request.
core.register_fetches("wait_s", function(txn)
  local minute, limit = minutes[txn:get_var("txn.key")], txn:get_var("txn.limit")
  return wait_s(minute, now_ms(), txn.f:sc_get_gpc0(0), limit)
end)

-- Holds a service's requests before HAProxy's queue until it is their turn. queueing.py says why, and does the same.
--
-- Each held request looks again and again for itself. So there is nobody who gives turns away, and nothing to undo when
-- a client leaves: HAProxy then ends the action without a word to it, and a request that has not looked for a while is
-- no longer counted.
--
-- Values are per service, as HAProxy's configuration gives them; times are in ms.

local SILENT_MS = 3000
local LONGEST_LOOK_MS = 1000
local FRONT = 50 -- so many look each time; who stands further behind looks the more seldom
local STEPS = 200 -- nothing else happens in HAProxy meanwhile

-- Requests by place, which is their order of arrival. From `first` on they are late, from `in_time` on in time. Places
-- behind may have been left already: they count until those before have gone, too.
local Line = {}
Line.__index = Line

-- `all` counts the requests of several lines together. A line of `batch` requests goes where no other request waits.
function Line.new(all, batch)
  all = all or { held = 0, batch = 0 }
  return setmetatable({ first = 1, in_time = 1, last = 0, held = 0, places = {}, all = all, batch = batch }, Line)
end

function Line:enter(now)
  self.last = self.last + 1
  self.held = self.held + 1
  self:count_all(1)
  local request = { came = now, looked = now, place = self.last }
  self.places[self.last] = request
  return request
end

function Line:count_all(more)
  self.all.held = self.all.held + more
  if self.batch then
    self.all.batch = self.all.batch + more
  end
end

function Line:leave(request)
  if not request.left then
    request.left = true
    self.held = self.held - 1
    self:count_all(-1)
  end
end

function Line:gone(request, now)
  if now - request.looked > SILENT_MS then
    self:leave(request)
  end
  return request.left
end

-- How many wait. Looks at all, because nobody else may be there to find that the clients of the last ones have left.
function Line:count(now)
  for place = self.first, self.last do
    self:gone(self.places[place], now)
  end
  return self.held
end

-- Move `first` and `in_time` to where they belong.
function Line:settle(now, in_time_ms)
  local steps = STEPS
  while self.first <= self.last and steps > 0 and self:gone(self.places[self.first], now) do
    self.places[self.first] = nil
    self.first = self.first + 1
    steps = steps - 1
  end
  self.in_time = math.max(self.in_time, self.first)
  while self.in_time <= self.last and steps > 0 do
    local request = self.places[self.in_time]
    if now - request.came <= in_time_ms and not self:gone(request, now) then
      break
    end
    self.in_time = self.in_time + 1
    steps = steps - 1
  end
end

-- How many are before a request in its class, and how many of them may go at once. `fleet` is that of queueing.py.
function Line:standing(request, now, fleet, rules)
  self:settle(now, rules.in_time_ms)
  if self.batch then
    local open = self.all.held == self.all.batch and fleet.free - fleet.queued - rules.reserve * fleet.ready or 0
    return request.place - self.first, open
  end
  if request.place >= self.in_time then
    local buffer = math.max(1, math.floor(rules.buffer * fleet.ready))
    return request.place - self.in_time, fleet.free + buffer - fleet.queued
  end
  local in_time = self.last - self.in_time + 1
  local reserve = now - request.came >= rules.patience_ms and 0 or rules.reserve * fleet.ready
  return request.place - self.first, fleet.free - fleet.queued - in_time - reserve
end

local function look_ms(before, rules)
  return math.floor(math.min(LONGEST_LOOK_MS, rules.look_ms * math.max(1, before / FRONT)))
end

if not core then
  return { Line = Line, look_ms = look_ms }
end

-- By backend, and there by key: each key has a line of its own, and the first ones of all try for the same places. The
-- batches of a key that is no batch key itself have another one.
local queues = {}

local function now_ms()
  local now = core.now()
  return now.sec * 1000 + now.usec // 1000
end

local function line_of(queue, name, batch)
  queue.lines[name] = queue.lines[name] or Line.new(queue, batch)
  return queue.lines[name]
end

-- http-request lua.wait_for_turn BACKEND LIMIT IN_TIME_MS PATIENCE_MS DEADLINE_MS BUFFER RESERVE LOOK_MS
-- Buffer and reserve are per replica. Sets txn.turn to `full` if too many wait, to `never` at the deadline.
local function wait_for_turn(txn, backend, limit, in_time, patience, deadline, buffer, reserve, look)
  queues[backend] = queues[backend] or { held = 0, batch = 0, lines = {} }
  local queue, batch = queues[backend], txn:get_var("txn.batch") ~= nil
  local name = (batch and "batch/" or "/") .. (txn:get_var("txn.key") or "")
  local line = line_of(queue, name, batch)
  line:settle(now_ms(), tonumber(in_time))
  if queue.held + txn.f:queue(backend) >= tonumber(limit) then
    txn:set_var("txn.turn", "full")
    return
  end
  local rules = {
    in_time_ms = tonumber(in_time),
    patience_ms = tonumber(patience),
    buffer = tonumber(buffer),
    reserve = tonumber(reserve),
    look_ms = tonumber(look),
  }
  local request = line:enter(now_ms())
  while true do
    local now = now_ms()
    request.looked = now
    local fleet = { ready = txn.f:nbsrv(backend), free = txn.f:be_conn_free(backend), queued = txn.f:queue(backend) }
    local before, room = line:standing(request, now, fleet, rules)
    -- Without a replica HAProxy counts the activator, which has no limit (-1), and takes those that wait.
    if fleet.free < 0 or before < room then
      break
    end
    if now - request.came >= tonumber(deadline) then
      txn:set_var("txn.turn", "never")
      break
    end
    core.msleep(look_ms(before, rules))
  end
  line:leave(request)
  if line.held == 0 then
    queue.lines[name] = nil
  end
end

core.register_action("wait_for_turn", { "http-req" }, wait_for_turn, 8)

-- In one piece that fits HAProxy's buffer, so that it does not wait for room: see `tune.lua.forced-yield`.
core.register_cli({ "show", "held" }, "show held : requests that wait for their turn, by backend", function(applet)
  local found = {}
  for backend, queue in pairs(queues) do
    for name, line in pairs(queue.lines) do
      if line:count(now_ms()) == 0 then
        queue.lines[name] = nil
      end
    end
    if queue.held > 0 then
      found[#found + 1] = backend .. " " .. queue.held .. "\n"
    end
  end
  applet:send(table.concat(found))
end)

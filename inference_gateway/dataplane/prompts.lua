-- Chooses the replica that has the least left to read. queueing.py says why, and does the same.
--
-- Values are per service, as HAProxy's configuration gives them; times are in ms.

-- What the replicas of a service have to read: until when each is busy with that.
local Reading = {}
Reading.__index = Reading

function Reading.new()
  return setmetatable({ names = {}, known = {}, until_ms = {}, longest_ms = 0 }, Reading)
end

function Reading:add(name)
  if not self.known[name] then
    self.known[name] = true
    self.names[#self.names + 1] = name
  end
end

function Reading:remove(name)
  self.known[name] = nil
  self.until_ms[name] = nil
  for at, other in ipairs(self.names) do
    if other == name then
      table.remove(self.names, at)
      return
    end
  end
end

-- Of the replicas with a free place the one with the least to read; of several the one with the most places. nil: none.
-- `places` tells of a name how many are free, `works` whether it has a request: one that has none has nothing to read,
-- whatever was expected (its client has left, or it read faster).
function Reading:least(now, places, works)
  local best, best_left, best_free
  for _, name in ipairs(self.names) do
    local free = places(name)
    local left = math.max(0, (self.until_ms[name] or 0) - now)
    if left > 0 and not works(name) then
      left, self.until_ms[name] = 0, nil
    end
    if free > 0 and (not best or left < best_left or (left == best_left and free > best_free)) then
      best, best_left, best_free = name, left, free
    end
  end
  return best
end

function Reading:take(name, now, ms)
  self.until_ms[name] = math.max(now, self.until_ms[name] or 0) + ms
  self.longest_ms = math.max(self.longest_ms, self.until_ms[name])
end

if not core then
  return Reading
end

-- By backend. Replicas of the configuration are known at the first request; those that come later are told of.
local readings = {}
-- What the control plane has told, by backend; nothing of it in a new HAProxy until it is told again.
local ms_per_byte = {}

local function reading_of(backend)
  if not readings[backend] then
    readings[backend] = Reading.new()
    for name in pairs(core.backends[backend].servers) do
      if name ~= "activator" then
        readings[backend]:add(name)
      end
    end
  end
  return readings[backend]
end

-- Free places of a server: none if it is down, or not there any more. HAProxy 2.6 writes into the name that it
-- is given, so each call has one of its own.
local function places_of(txn, backend, name)
  local found, free = pcall(function()
    local up = txn.f:srv_is_up(backend .. "/" .. name)
    return (up == true or up == 1) and txn.f:srv_conn_free(backend .. "/" .. name) or 0
  end)
  return found and free or 0
end

local function works_of(txn, backend, name)
  local found, requests = pcall(function()
    return txn.f:srv_conn(backend .. "/" .. name)
  end)
  return not found or requests > 0
end

-- http-request lua.least_to_read BACKEND MS_PER_BYTE SERVICE MAP
-- Sets txn.replica, if any has a place, and the service's line of the map to when the last of them will have read all it
-- has. What has been told at run time goes before MS_PER_BYTE.
local function least_to_read(txn, backend, configured, service, map)
  local reading, now = reading_of(backend), core.now()
  local now_ms = now.sec * 1000 + now.usec // 1000
  local name = reading:least(now_ms, function(one)
    return places_of(txn, backend, one)
  end, function(one)
    return works_of(txn, backend, one)
  end)
  if name then
    local bytes = tonumber(txn.f:req_hdr("content-length")) or 0
    reading:take(name, now_ms, bytes * (ms_per_byte[backend] or tonumber(configured)))
    txn:set_var("txn.replica", name)
    core.set_map(map, service, tostring(math.ceil(reading.longest_ms)))
  end
end

core.register_action("least_to_read", { "http-req" }, least_to_read, 4)

local function told(change)
  return function(applet, _, _, server)
    local backend, name = string.match(server or "", "^([^/]+)/(.+)$")
    if backend and core.backends[backend] then
      reading_of(backend)[change](reading_of(backend), name)
      applet:send("\n")
    else
      applet:send("no such backend\n")
    end
  end
end

core.register_cli({ "reading", "add" }, "reading add BACKEND/SERVER : a replica to choose", told("add"))
core.register_cli({ "reading", "del" }, "reading del BACKEND/SERVER : and one less", told("remove"))

local function rate(applet, _, _, backend, told_ms_per_byte, service, long_from, map)
  local ms = tonumber(told_ms_per_byte)
  if core.backends[backend] and ms and map and tonumber(long_from) then
    ms_per_byte[backend] = ms
    core.set_map(map, service, long_from)
    applet:send("\n")
  else
    applet:send("not understood\n")
  end
end

core.register_cli({ "reading", "rate" }, "reading rate BACKEND MS_PER_BYTE SERVICE BYTES MAP : what replicas read", rate)

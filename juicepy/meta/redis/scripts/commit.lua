-- Compare values; if all are as expected apply the changes, else return what is there now.
-- KEYS[1]  one of the keys (all share its slot)
-- ARGV[1]  msgpack {checks, changes with a reply, changes, patches}
--   check   {1, key, value | false}             string
--           {2, key, value | false, field}      field of a hash
--           {3, key, is_empty}                  hash without fields
--           {4, key, {value, ...}}              list begins with these
--           {5, key, {value, ...}}              list is this
--           {6, key, {field, value, ...}}       hash is this, in any order
--           {7, key, head, at, tail}            string begins with head, from byte `at` on is tail
--           {8, key}                            string exists
--           {9, key, field}                     hash has this field
--   change  {command, argument, ...}
--   patch   {key, {at, bytes} | false, {at, delta} | false}    bytes from `at` on are replaced,
--           the big-endian u32 at `at` is added to; bytes are counted from 1
-- result   {1, reply, ..., patched value, ...}, or {0, number of a failed check, value now, ...}

local function begins(list, want)
  for n = 1, #want do
    if list[n] ~= want[n] then return false end
  end
  return true
end

local function equals(pairs_now, want)
  if #pairs_now ~= #want then return false end
  local now = {}
  for n = 1, #pairs_now, 2 do now[pairs_now[n]] = pairs_now[n + 1] end
  for n = 1, #want, 2 do
    if now[want[n]] ~= want[n + 1] then return false end
  end
  return true
end

local call = redis.call
local compare = {
  function(check)
    local now = call('GET', check[2])
    return now == check[3], now
  end,
  function(check)
    local now = call('HGET', check[2], check[4])
    return now == check[3], now
  end,
  function(check)
    local now = call('HLEN', check[2])
    return (now == 0) == check[3], now
  end,
  function(check)
    local now = call('LRANGE', check[2], 0, #check[3] - 1)
    if begins(now, check[3]) then return true end
    return false, call('LRANGE', check[2], 0, -1)
  end,
  function(check)
    local now = call('LRANGE', check[2], 0, -1)
    return #now == #check[3] and begins(now, check[3]), now
  end,
  function(check)
    local now = call('HGETALL', check[2])
    return equals(now, check[3]), now
  end,
  function(check)
    local now = call('GET', check[2])
    return now and string.sub(now, 1, #check[3]) == check[3]
      and string.sub(now, check[4]) == check[5], now
  end,
  function(check)
    local now = call('GET', check[2])
    return now, now
  end,
  function(check)
    return call('HEXISTS', check[2], check[3]) == 1, false
  end,
}

local program = cmsgpack.unpack(ARGV[1])
local result = {0}
for n, check in ipairs(program[1]) do
  local same, now = compare[check[1]](check)
  if not same then
    result[#result + 1] = n
    result[#result + 1] = now
  end
end
if #result > 1 then return result end

result[1] = 1
for _, change in ipairs(program[2]) do
  result[#result + 1] = call(unpack(change))
end
for _, change in ipairs(program[3]) do
  call(unpack(change))
end
for _, patch in ipairs(program[4]) do
  local key, bytes, sum = patch[1], patch[2], patch[3]
  local value = call('GET', key)
  if bytes then
    value = string.sub(value, 1, bytes[1] - 1) .. bytes[2]
      .. string.sub(value, bytes[1] + #bytes[2])
  end
  if sum then
    local number = struct.unpack('>I4', value, sum[1]) + sum[2]
    value = string.sub(value, 1, sum[1] - 1) .. struct.pack('>I4', math.max(0, number))
      .. string.sub(value, sum[1] + 4)
  end
  call('SET', key, value)
  result[#result + 1] = value
end
return result

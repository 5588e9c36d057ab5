-- A field of a hash, and the string that the number in it names.
-- KEYS[1]  the hash
-- ARGV[1]  the field: one byte, then a big-endian u64
-- ARGV[2]  what the name of the string begins with; the number follows in decimal
-- result   false, or {field, string | false}

local value = redis.call('HGET', KEYS[1], ARGV[1])
if not value then return false end
local high, low = struct.unpack('>I4I4', value, 2)
-- Lua's numbers are exact to 2^53 only: count in units of 10^9.
local rest = (high * 4294 % 1000) * 1000000 + high * 967296 + low
local units = math.floor(high * 4294 / 1000) + math.floor(rest / 1e9)
local decimal
if units > 0 then
  decimal = string.format('%.0f%09.0f', units, rest % 1e9)
else
  decimal = string.format('%.0f', rest)
end
return {value, redis.call('GET', ARGV[2] .. decimal)}

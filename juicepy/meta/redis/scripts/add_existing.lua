-- Add to numbers in hashes, for those fields that a guarding hash has.
-- KEYS[1]  the guarding hash
-- ARGV[1]  msgpack {{hash, ...}, {{field, number per hash, ...}, ...}}
-- result   fields that the guard lacks, or that a number fell below zero for

local program = cmsgpack.unpack(ARGV[1])
local odd = {}
for _, row in ipairs(program[2]) do
  local field, fell = row[1], redis.call('HEXISTS', KEYS[1], row[1]) == 0
  if not fell then
    for n, hash in ipairs(program[1]) do
      if row[n + 1] ~= 0 and redis.call('HINCRBY', hash, field, row[n + 1]) < 0 then
        fell = true
      end
    end
  end
  if fell then odd[#odd + 1] = field end
end
return odd
